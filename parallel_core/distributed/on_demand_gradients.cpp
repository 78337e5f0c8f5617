#include "parallel_core/distributed/on_demand_gradients.h"

#include <cmath>

#include "autograd/kernels/reduce.h"
#include "autograd/tape/engine.h"

namespace tapestry {

OnDemandGradients::OnDemandGradients(const std::vector<nn::Module::NamedParameter>& parameters,
                                     const Options& options)
    : seed_(options.seed) {
  for (auto entry = parameters.rbegin(); entry != parameters.rend(); ++entry) {
    attach_main_grad(*entry->parameter, options.dtype);
    pieces_.push_back({*entry->parameter, combine(stream_of("main_grad"), stream_of(entry->name)),
                       entry->parameter->flags().shared});
  }
}

void OnDemandGradients::zero(int64_t step) {
  for (const Piece& piece : pieces_) {
    release_main_grad(piece.parameter,
                      {seed_, combine(piece.stream, static_cast<uint64_t>(step)), 0});
  }
}

void OnDemandGradients::scale(double factor) {
  for (const Piece& piece : pieces_) {
    const Tensor gradient = piece.parameter.main_grad();
    kernels::scale_inplace(gradient.dtype(), gradient.numel(), factor, gradient.raw());
  }
}

double OnDemandGradients::norm() const {
  double squares = 0;
  for (const Piece& piece : pieces_) {
    if (!piece.shared) {
      const Tensor gradient = piece.parameter.main_grad();
      squares += kernels::sum_of_squares(gradient.dtype(), gradient.numel(), gradient.raw());
    }
  }
  return std::sqrt(squares);
}

}  // namespace tapestry

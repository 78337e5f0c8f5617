#include "parallel_core/optimizer/global_norm.h"

#include <algorithm>
#include <cmath>

#include "autograd/kernels/reduce.h"
#include "autograd/ops/map.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/distributed/finalize_model_grads.h"
#include "parallel_core/parallel_state.h"

namespace tapestry {

bool counts_in_norm(const nn::Parameter& parameter) {
  const nn::ParameterFlags& flags = parameter.flags();
  return !flags.shared &&
         (flags.tp == nn::TensorParallel::kSharded || get_tensor_model_parallel_rank() == 0);
}

double sum_over_model_parallel(double value) {
  const double over_slices = sum_over(get_tensor_model_parallel_group(), value);
  return sum_over(get_pipeline_model_parallel_group(), over_slices);
}

namespace {

// What the ranks of the tensor-parallel group count more than once in their sums of squares.
double repeated_squares_of(const nn::Module& model, const DistributedDataParallel* data_parallel) {
  const bool in_pieces = data_parallel != nullptr && data_parallel->shards_optimizer();
  double squares = 0;
  bool has_copies = false;
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    const auto& logical = entry.parameter->logical();
    if (std::none_of(logical.begin(), logical.end(),
                     [](const nn::LogicalTensor& tensor) { return tensor.copies > 1; })) {
      continue;
    }
    has_copies = true;
    if (in_pieces) {
      squares += repeated_squares(*entry.parameter, data_parallel->held_gradient(entry.name),
                                  data_parallel->shards()->first_element(entry.name));
    } else if (const Tensor gradient = entry.parameter->grad(); gradient.defined()) {
      squares += repeated_squares(*entry.parameter, gradient);
    }
  }
  if (in_pieces && has_copies) {
    squares = sum_over(data_parallel->group(), squares);
  }
  return squares;
}

}  // namespace

double global_grad_norm(const nn::Module& model, const DistributedDataParallel* data_parallel) {
  double squares = 0;
  if (data_parallel != nullptr) {
    squares = data_parallel->squares(counts_in_norm);
  } else {
    for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
      const Tensor gradient = entry.parameter->grad();
      if (gradient.defined() && counts_in_norm(*entry.parameter)) {
        const Tensor values = dense(gradient);
        squares += kernels::sum_of_squares(values.dtype(), values.numel(), values.raw());
      }
    }
  }
  squares -= repeated_squares_of(model, data_parallel);
  return std::sqrt(sum_over_model_parallel(squares));
}

}  // namespace tapestry

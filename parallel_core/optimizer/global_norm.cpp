#include "parallel_core/optimizer/global_norm.h"

#include <algorithm>
#include <cmath>

#include "parallel_core/comm/sum_over.h"
#include "parallel_core/distributed/finalize_model_grads.h"
#include "parallel_core/parallel_state.h"

namespace tapestry {

namespace {

// True if this rank's part of the parameter is to be counted in a sum over the ranks of the tensor
// and pipeline groups: a slice always, what all tensor-parallel ranks hold equally only on the
// first of them, a further copy of a tied weight never.
bool counts_in_norm(const nn::Parameter& parameter) {
  const nn::ParameterFlags& flags = parameter.flags();
  return !flags.shared &&
         (flags.tp == nn::TensorParallel::kSharded || !model_parallel_is_initialized() ||
          get_tensor_model_parallel_rank() == 0);
}

double sum_over_model_parallel(double value) {
  if (!model_parallel_is_initialized()) {
    return value;
  }
  const double over_slices = sum_over(get_tensor_model_parallel_group(), value);
  return sum_over(get_pipeline_model_parallel_group(), over_slices);
}

// What the ranks of the tensor-parallel group count more than once in their sums of squares.
double repeated_squares_of(const nn::Module& model, const ModelGradients& gradients) {
  double squares = 0;
  bool has_copies = false;
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    const auto& logical = entry.parameter->logical();
    if (std::any_of(logical.begin(), logical.end(),
                    [](const nn::LogicalTensor& tensor) { return tensor.copies > 1; })) {
      has_copies = true;
      const ModelGradients::Held held = gradients.held_gradient(entry);
      squares += repeated_squares(*entry.parameter, held.elements, held.first);
    }
  }
  return has_copies ? gradients.sum_over_pieces(squares) : 0;
}

}  // namespace

double global_grad_norm(const nn::Module& model, const ModelGradients& gradients) {
  const double squares = gradients.sum_over_pieces(gradients.squares(counts_in_norm));
  return std::sqrt(sum_over_model_parallel(squares - repeated_squares_of(model, gradients)));
}

}  // namespace tapestry

#include "parallel_core/optimizer/global_norm.h"

#include <algorithm>
#include <cmath>

#include "parallel_core/comm/sum_over.h"
#include "parallel_core/distributed/finalize_model_grads.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/parameter_ranks.h"

namespace tapestry {

namespace {

// True if this rank's part of the parameter is to be counted in a sum over the ranks that hold its
// slices, and over the stages: a slice always, what all of them hold equally only on the first, a
// further copy of a tied weight never.
bool counts_in_norm(const nn::Parameter& parameter) {
  const nn::ParameterFlags& flags = parameter.flags();
  return !flags.shared &&
         (flags.tp == nn::TensorParallel::kSharded || slices_group(flags.expert).rank() == 0);
}

// What the ranks that hold slices count more than once in their sums of squares.
double repeated_squares_of(const nn::Module& model, const ModelGradients& gradients) {
  double squares = 0;
  bool has_copies = false;
  for (const nn::Module::NamedParameter& entry : model.trained_parameters()) {
    const auto& logical = entry.parameter->logical();
    if (!entry.parameter->flags().expert &&
        std::any_of(logical.begin(), logical.end(),
                    [](const nn::LogicalTensor& tensor) { return tensor.copies > 1; })) {
      has_copies = true;
      const ModelGradients::Held held = gradients.held_gradient(entry);
      squares += repeated_squares(*entry.parameter, held.elements, held.first);
    }
  }
  return has_copies ? gradients.sum_over_pieces(squares, /*of_experts=*/false) : 0;
}

// Of the part of a stage that is the same for all experts.
double dense_squares(const nn::Module& model, const ModelGradients& gradients) {
  const double squares =
      gradients.sum_over_pieces(gradients.squares([](const nn::Parameter& parameter) {
        return !parameter.flags().expert && counts_in_norm(parameter);
      }),
                                /*of_experts=*/false);
  return sum_over(slices_group(/*of_expert=*/false),
                  squares - repeated_squares_of(model, gradients));
}

// Of the experts of a stage, each of them once: ranks of an edp group have the same ones.
double expert_squares(const ModelGradients& gradients) {
  const double squares =
      gradients.sum_over_pieces(gradients.squares([](const nn::Parameter& parameter) {
        return parameter.flags().expert && counts_in_norm(parameter);
      }),
                                /*of_experts=*/true);
  return sum_over(experts_group(), sum_over(slices_group(/*of_expert=*/true), squares));
}

}  // namespace

double global_grad_norm(const nn::Module& model, const ModelGradients& gradients) {
  double squares = dense_squares(model, gradients);
  if (has_experts(model)) {
    squares += expert_squares(gradients);
  }
  if (model_parallel_is_initialized()) {
    squares = sum_over(get_pipeline_model_parallel_group(), squares);
  }
  return std::sqrt(squares);
}

}  // namespace tapestry

#include "parallel_core/optimizer/global_norm.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "parallel_core/comm/sum_over.h"
#include "parallel_core/distributed/finalize_model_grads.h"
#include "parallel_core/optimizer/exact_norms.h"
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

// Over the ranks that hold other parts of the dense part of a stage, or of its experts.
void reduce_parts(std::span<double> values,
                  ReduceOp op,
                  const ModelGradients& gradients,
                  bool of_experts) {
  if (ProcessGroup* pieces = gradients.pieces_group(of_experts)) {
    reduce_over(*pieces, values, op);
  }
  reduce_over(slices_group(of_experts), values, op);
  if (of_experts) {
    reduce_over(experts_group(), values, op);
  }
}

// The same bits in every layout.
double exact_grad_norm(const nn::Module& model, const ModelGradients& gradients) {
  ExactNorms norms(2);  // of the dense part and the experts, which become one
  for (const nn::Module::NamedParameter& entry : model.trained_parameters()) {
    const nn::Parameter& parameter = *entry.parameter;
    if (!counts_in_norm(parameter)) {
      continue;
    }
    const size_t part = parameter.flags().expert ? 1 : 0;
    const ModelGradients::Held held = gradients.held_gradient(entry);
    norms.add(part, held.elements);
    for (const nn::LogicalTensor& logical : parameter.logical()) {
      // Of the ranks that hold the same slice, the first one counts it.
      if (logical.copies > 1 &&
          slices_group(parameter.flags().expert).rank() % logical.copies != 0) {
        norms.take_away(part, part_with_copies(logical, held.elements, held.first));
      }
    }
  }
  const bool with_experts = has_experts(model);
  return norms
      .result([&](std::span<double> values, ReduceOp op) {
        const std::span<double> dense = values.first(values.size() / 2);
        const std::span<double> experts = values.last(values.size() / 2);
        reduce_parts(dense, op, gradients, /*of_experts=*/false);
        if (with_experts) {
          reduce_parts(experts, op, gradients, /*of_experts=*/true);
        }
        for (size_t i = 0; i < dense.size(); ++i) {
          dense[i] = op == ReduceOp::kMax ? std::max(dense[i], experts[i]) : dense[i] + experts[i];
        }
        if (model_parallel_is_initialized()) {
          reduce_over(get_pipeline_model_parallel_group(), dense, op);
        }
        std::copy(dense.begin(), dense.end(), experts.begin());
      })
      .front();
}

}  // namespace

double global_grad_norm(const nn::Module& model, const ModelGradients& gradients) {
  if (gradients.exact()) {
    return exact_grad_norm(model, gradients);
  }
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

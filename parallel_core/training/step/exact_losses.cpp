#include "parallel_core/training/step/exact_losses.h"

#include <optional>

#include "autograd/tensor/error.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/context_parallel/context_parallel_layout.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/pipeline_parallel/collect.h"

namespace tapestry {

namespace {

// Over the ranks that have other tokens of the same sequences.
kernels::ExactSum of_whole_sequences(const ParallelModel& model,
                                     const std::optional<kernels::ExactSum>& own) {
  check<RuntimeError>(own.has_value(), "training_config.exact: ", model.type_name(),
                      " gives no exact loss (ModelOutput::exact_loss); set exact: False");
  kernels::ExactSum sum = *own;
  const ContextParallelLayout layout = context_parallel_layout();
  if (layout.size > 1) {
    sum_over(*layout.group, sum);
  }
  return sum;
}

}  // namespace

double ExactLosses::add(const ParallelModel& model, const ModelOutput& output) {
  const kernels::ExactSum own = of_whole_sequences(model, output.exact_loss);
  own_.add(own);
  for (size_t i = 0; i < output.ahead.size(); ++i) {
    ahead_.at(i).add(of_whole_sequences(model, output.ahead[i].exact_loss));
  }
  return output.token_count > 0 ? own.value() / output.token_count : 0;
}

void ExactLosses::sum_over_ranks() {
  const auto bring_together = [](kernels::ExactSum& sum) {
    sum_over_pipeline(sum);
    if (model_parallel_is_initialized()) {
      sum_over(get_data_parallel_group(), sum);
    }
  };
  bring_together(own_);
  for (kernels::ExactSum& sum : ahead_) {
    bring_together(sum);
  }
}

}  // namespace tapestry

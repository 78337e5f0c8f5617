#include "parallel_core/parameter_ranks.h"

#include <algorithm>
#include <memory>

#include "parallel_core/parallel_state.h"

namespace tapestry {

namespace {

ProcessGroup& alone() {
  static const std::shared_ptr<ProcessGroup> group = single_process_group();
  return *group;
}

}  // namespace

bool has_experts(const nn::Module& model) {
  const auto parameters = model.named_parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const auto& entry) { return entry.parameter->flags().expert; });
}

ProcessGroup& slices_group(bool of_expert) {
  if (!model_parallel_is_initialized()) {
    return alone();
  }
  return of_expert ? get_expert_tensor_parallel_group() : get_tensor_model_parallel_group();
}

ProcessGroup& copies_group(bool of_expert) {
  if (!model_parallel_is_initialized()) {
    return alone();
  }
  return of_expert ? get_data_modulo_expert_parallel_group()
                   : get_data_parallel_group(get_context_parallel_world_size() > 1);
}

ProcessGroup& experts_group() {
  return model_parallel_is_initialized() ? get_expert_model_parallel_group() : alone();
}

ProcessGroup& whole_experts_group() {
  return model_parallel_is_initialized() ? get_tensor_and_expert_parallel_group() : alone();
}

}  // namespace tapestry

// The tasks that learn from preferences: dpo, kto, orpo, cpo.
#pragma once

#include <memory>
#include <string_view>

#include "parallel_core/post_training/example_task.h"

namespace tapestry::post_training {

/// Whether `task` is one of them.
bool is_preference_task(std::string_view task);

/// Examples, for dpo and kto a reference, and the task's objective.
class PreferenceTask final : public ExampleTask {
 public:
  std::unique_ptr<StepObjective> objective(const AllConfig& config,
                                           TrainOneStepCell& cell) override;
};

}  // namespace tapestry::post_training

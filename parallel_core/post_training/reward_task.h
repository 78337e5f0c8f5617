// Task reward: a reward model of pairs of answers.
#pragma once

#include <memory>

#include "parallel_core/post_training/example_task.h"

namespace tapestry::post_training {

/// RewardObjective on pairs, of which those too long are left out.
class RewardTask final : public ExampleTask {
 public:
  std::unique_ptr<StepObjective> objective(const AllConfig& config,
                                           TrainOneStepCell& cell) override;
};

}  // namespace tapestry::post_training

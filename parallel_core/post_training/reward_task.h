// Task reward: a reward model of pairs of answers.
#pragma once

#include <memory>

#include "parallel_core/post_training/example_task.h"

namespace tapestry::post_training {

/// RewardObjective on pairs, of which those too long are left out.
class RewardTask final : public ExampleTask {
 public:
  RunData open_data(const AllConfig& config,
                    ProcessGroup& world,
                    DataUse use,
                    const DataState* resumed) override;
  std::unique_ptr<StepObjective> objective(const AllConfig& config,
                                           TrainOneStepCell& cell) override;

 private:
  double tokens_before_ = 0;  // of a run that goes on
};

}  // namespace tapestry::post_training

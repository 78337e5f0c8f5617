#include "parallel_core/post_training/reward_task.h"

#include "parallel_core/post_training/reward/reward_objective.h"

namespace tapestry::post_training {

std::unique_ptr<StepObjective> RewardTask::objective(const AllConfig& config,
                                                     TrainOneStepCell& /*cell*/) {
  return std::make_unique<RewardObjective>(config, examples(), room().pad_id);
}

}  // namespace tapestry::post_training

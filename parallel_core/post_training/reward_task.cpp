#include "parallel_core/post_training/reward_task.h"

#include "parallel_core/post_training/preference_task.h"
#include "parallel_core/post_training/reward/reward_objective.h"

namespace tapestry::post_training {

RunData RewardTask::open_data(const AllConfig& config,
                              ProcessGroup& world,
                              DataUse use,
                              const DataState* resumed) {
  RunData data = ExampleTask::open_data(config, world, use, resumed);
  tokens_before_ = tokens_before(data);
  return data;
}

std::unique_ptr<StepObjective> RewardTask::objective(const AllConfig& config,
                                                     TrainOneStepCell& /*cell*/) {
  return std::make_unique<RewardObjective>(config, examples(), room().pad_id, tokens_before_);
}

}  // namespace tapestry::post_training

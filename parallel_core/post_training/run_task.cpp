#include "parallel_core/post_training/run_task.h"

#include <string>

#include "autograd/tensor/error.h"
#include "parallel_core/post_training/distil_task.h"
#include "parallel_core/post_training/grpo_task.h"
#include "parallel_core/post_training/preference_task.h"
#include "parallel_core/post_training/reward_task.h"

namespace tapestry::post_training {

std::unique_ptr<RunTask> run_task(const AllConfig& config) {
  const std::string task = config.post_training_config.task.value_or("");
  if (task.empty()) {
    return nullptr;
  }
  if (task == "grpo") {
    const bool stored = config.post_training_config.rollouts.has_value();
    return std::make_unique<GrpoTask>(stored ? stored_rollouts() : sampled_rollouts());
  }
  if (task == "distil") {
    return std::make_unique<DistilTask>();
  }
  if (is_preference_task(task)) {
    return std::make_unique<PreferenceTask>();
  }
  if (task == "reward") {
    return std::make_unique<RewardTask>();
  }
  throw ValueError(concat("post_training_config.task ", task,
                          " is not known; expected dpo, kto, orpo, cpo, reward, distil or grpo"));
}

}  // namespace tapestry::post_training

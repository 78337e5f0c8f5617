#include "parallel_core/post_training/run_task.h"

#include <string>

#include "autograd/tensor/error.h"
#include "parallel_core/post_training/grpo_task.h"

namespace tapestry::post_training {

std::unique_ptr<RunTask> run_task(const AllConfig& config) {
  const std::string task = config.post_training_config.task.value_or("");
  if (task.empty()) {
    return nullptr;
  }
  if (task == "grpo") {
    check<ValueError>(config.post_training_config.rollouts.has_value(),
                      "post_training_config.task grpo: post_training_config.rollouts is missing; "
                      "name a file of completions with rewards");
    return std::make_unique<GrpoTask>(stored_rollouts());
  }
  throw ValueError(concat("post_training_config.task ", task, ": is not built yet"));
}

}  // namespace tapestry::post_training

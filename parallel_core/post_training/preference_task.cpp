#include "parallel_core/post_training/preference_task.h"

#include <string>

#include "parallel_core/post_training/preference/dpo_objective.h"
#include "parallel_core/post_training/preference/kto_objective.h"
#include "parallel_core/post_training/preference/odds_objective.h"

namespace tapestry::post_training {

bool is_preference_task(std::string_view task) {
  return task == "dpo" || task == "kto" || task == "orpo" || task == "cpo";
}

std::unique_ptr<StepObjective> PreferenceTask::objective(const AllConfig& config,
                                                         TrainOneStepCell& /*cell*/) {
  const std::string& task = *config.post_training_config.task;
  if (task == "dpo") {
    return std::make_unique<DpoObjective>(config, examples(), reference(), room());
  }
  if (task == "kto") {
    return std::make_unique<KtoObjective>(
        config, examples(),
        KtoObjective::References{.examples = reference(), .mismatched = mismatched_reference()},
        room());
  }
  return std::make_unique<OddsObjective>(config);
}

}  // namespace tapestry::post_training

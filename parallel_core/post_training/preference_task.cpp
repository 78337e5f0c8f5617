#include "parallel_core/post_training/preference_task.h"

#include <algorithm>
#include <string>

#include "parallel_core/post_training/preference/dpo_objective.h"
#include "parallel_core/post_training/preference/kto_objective.h"
#include "parallel_core/post_training/preference/odds_objective.h"
#include "parallel_core/post_training/preference/step_sums.h"

namespace tapestry::post_training {

bool is_preference_task(std::string_view task) {
  return task == "dpo" || task == "kto" || task == "orpo" || task == "cpo";
}

namespace {

// Tokens of the samples before the one that a run goes on with.
double tokens_before(const RunData& data) {
  constexpr int64_t kAtOnce = 64;
  double tokens = 0;
  for (int64_t first = 0; data.train != nullptr && first < data.start.first_sample;) {
    const int64_t count = std::min(kAtOnce, data.start.first_sample - first);
    tokens += tokens_of(data.train->micro_batch({.first_sample = first}, 0, 1, count, 0, 1));
    first += count;
  }
  return tokens;
}

}  // namespace

RunData PreferenceTask::open_data(const AllConfig& config,
                                  ProcessGroup& world,
                                  DataUse use,
                                  const DataState* resumed) {
  RunData data = ExampleTask::open_data(config, world, use, resumed);
  tokens_before_ = tokens_before(data);
  return data;
}

std::unique_ptr<StepObjective> PreferenceTask::objective(const AllConfig& config,
                                                         TrainOneStepCell& /*cell*/) {
  const std::string& task = *config.post_training_config.task;
  if (task == "dpo") {
    return std::make_unique<DpoObjective>(config, examples(), reference(), room(), tokens_before_);
  }
  if (task == "kto") {
    return std::make_unique<KtoObjective>(
        config, examples(),
        KtoObjective::References{.examples = reference(), .mismatched = mismatched_reference()},
        room(), tokens_before_);
  }
  return std::make_unique<OddsObjective>(config);
}

}  // namespace tapestry::post_training

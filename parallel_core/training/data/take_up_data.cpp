#include "parallel_core/training/data/take_up_data.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/parallel_state.h"

namespace tapestry::internal {

namespace {

// The order of a part with its own data sets, which are others now, begins anew.
void keep_order_of_own_parts(const DataState& then, DataState& now, RunData& run) {
  constexpr std::array<const char*, 3> kNames = {"training", "validation", "test"};
  constexpr std::array kPlans = {&data::SamplePlan::train, &data::SamplePlan::valid,
                                 &data::SamplePlan::test};
  for (size_t part = 1; part < kNames.size(); ++part) {
    const auto& a = now.datasets[part];
    const auto& b = then.datasets[part];
    const bool same = std::equal(a.begin(), a.end(), b.begin(), b.end(),
                                 [](const DatasetShare& x, const DatasetShare& y) {
                                   return x.weight == y.weight && x.files.same_content(y.files);
                                 });
    if (!same) {
      (now.plan.*kPlans[part]).clear();
      if (!a.empty() && !b.empty()) {
        run.remarks.push_back(concat("the ", kNames[part], " data are not those of ", then.source,
                                     ": losses on them cannot be compared with earlier ones"));
      }
    }
  }
}

}  // namespace

int64_t batch_of(const AllConfig& config) {
  return global_batch_size(config, get_data_parallel_world_size());
}

BatchSchedule batches_of(const AllConfig& config) {
  return {config, get_data_parallel_world_size()};
}

void take_up(
    const AllConfig& config, const DataState* then, DataUse use, DataState& now, RunData& run) {
  if (then == nullptr) {
    return;
  }
  if (config.training_config.new_dataset && use == DataUse::kTraining) {
    now.begun = then->in_run();
    run.remarks.push_back(
        concat("new_dataset: begins at the first sample of these data, after ", now.begun.step,
               " steps with others; a run that goes on with its checkpoints is to be started "
               "without new_dataset, or it begins again"));
    return;
  }
  const std::vector<std::string> found = data_differences(now, *then);
  if (!found.empty()) {
    if (use == DataUse::kEvaluation) {
      return;
    }
    std::string text = concat("the data are not those of ", then->source, ":");
    for (const std::string& difference : found) {
      text += concat("\n  ", difference);
    }
    throw ValueError(concat(text,
                            "\nSet it back to go on where the run stopped, or set "
                            "training_config.new_dataset: True, which begins these data at "
                            "their first sample"));
  }
  now.begun = then->begun;
  now.position = then->position;
  now.plan = then->plan;
  keep_order_of_own_parts(*then, now, run);
}

}  // namespace tapestry::internal

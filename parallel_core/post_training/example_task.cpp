#include "parallel_core/post_training/example_task.h"

#include <utility>

#include "parallel_core/parallel_state.h"
#include "parallel_core/post_training/reference/reference_model.h"

namespace tapestry::post_training {

RunData ExampleTask::open_data(const AllConfig& config,
                               ProcessGroup& world,
                               DataUse use,
                               const DataState* resumed) {
  TaskData data = open_task_data(config, world, use, resumed);
  examples_ = std::move(data.examples);
  room_ = row_room(config, data.pad_id);
  return std::move(data.run);
}

void ExampleTask::prepare(const AllConfig& config, const ModelBeforeTraining& model) {
  if (!needs_reference_log_probs(config)) {
    return;
  }
  ReferenceLogProbs values =
      reference_log_probs(config, *examples_, room_, model, get_world_group());
  reference_ = std::make_shared<const LogProbTable>(std::move(values.sequences));
  mismatched_reference_ = std::make_shared<const LogProbTable>(std::move(values.mismatched));
}

}  // namespace tapestry::post_training

#include "parallel_core/post_training/example_task.h"

#include <utility>

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

}  // namespace tapestry::post_training

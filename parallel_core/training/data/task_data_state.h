// A task's data in what a checkpoint keeps of a run's data.
#pragma once

#include <string>
#include <vector>

#include "parallel_core/training/data/data_state.h"
#include "parallel_core/training/data/state_object.h"

namespace tapestry::internal {

StateObject::Json task_state_json(const TaskDataState& task);

/// IoError as StateObject, and for one without files.
TaskDataState read_task_state(StateObject object, const std::string& source);

/// Appends what differs, each with the key, the value now and the one then.
void compare_tasks(const TaskDataState& now,
                   const TaskDataState& then,
                   std::vector<std::string>& found);

}  // namespace tapestry::internal

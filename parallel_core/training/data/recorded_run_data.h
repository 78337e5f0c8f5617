// Runs whose batches were recorded beforehand: dataset_config.step_data_dir.
#pragma once

#include "parallel_core/config/config.h"
#include "parallel_core/training/data/data_state.h"
#include "parallel_core/training/data/run_data.h"

namespace tapestry::internal {

/// open_data of a configuration that has step_data_dir, for training. A run that needs more steps
/// than there are takes them again in their order, which a remark says. Steps that were added to a
/// recording are read by a run that goes on, unless it has begun it again already.
RunData open_recorded(const AllConfig& config, const DataState* resumed);

}  // namespace tapestry::internal

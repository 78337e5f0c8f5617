// What the sources of a run's data have in common.
#pragma once

#include <cstdint>

#include "parallel_core/config/batch_rampup.h"
#include "parallel_core/config/config.h"
#include "parallel_core/training/data/data_state.h"
#include "parallel_core/training/data/run_data.h"

namespace tapestry::internal {

/// Samples of a step of this job, where the batch is whole.
int64_t batch_of(const AllConfig& config);
/// The same of each step.
BatchSchedule batches_of(const AllConfig& config);

/// Takes up a checkpoint's place in the data, if they are the same, or begins these: `now`, which
/// says what they are, gets `begun`, `position` and `plan`, `run` remarks. `then` may be null.
/// ValueError, with both values, for other data, unless training_config.new_dataset, or where
/// nothing is trained.
void take_up(
    const AllConfig& config, const DataState* then, DataUse use, DataState& now, RunData& run);

}  // namespace tapestry::internal

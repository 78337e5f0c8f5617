// A program's own data, registered under a name, as the data of a run.
#pragma once

#include "parallel_core/config/config.h"
#include "parallel_core/training/data/data_state.h"
#include "parallel_core/training/data/run_data.h"

namespace tapestry::internal {

/// Opens dataset_config.data_source as open_data() does. A checkpoint's data are the same where
/// name and options are. ValueError where the factory makes no data to train on, none to validate
/// with although there is an eval_interval, or rows of another length than model_config.seq_length.
RunData open_own(const AllConfig& config, DataUse use, const DataState* resumed);

}  // namespace tapestry::internal

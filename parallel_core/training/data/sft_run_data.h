// Examples for fine-tuning as the data of a run.
#pragma once

#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/training/data/data_state.h"
#include "parallel_core/training/data/example_format.h"
#include "parallel_core/training/data/run_data.h"

namespace tapestry {

/// Opens dataset_config.sft_data_path as open_data() does: reads and encodes every example, and
/// puts them into rows. Evaluation reads each example once: its rows are made up to whole global
/// batches with rows that hold nothing to learn. A row is what it is whatever the length of the
/// run, so that a run that goes on may become longer. The same on every rank. Errors as open_data,
/// sft:: and read_chat_format. A template that asks for the day (strftime_now) is told
/// dataset_config.chat_date, else what the checkpoint has kept, else `day`, "YYYY-MM-DD".
RunData open_examples(const AllConfig& config,
                      DataUse use,
                      const DataState* resumed,
                      const std::string& day);

}  // namespace tapestry

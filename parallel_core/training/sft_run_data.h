// Examples for fine-tuning as the data of a run.
#pragma once

#include <optional>

#include "parallel_core/chat/chat_format.h"
#include "parallel_core/config/config.h"
#include "parallel_core/data/tokenizer.h"
#include "parallel_core/training/data_state.h"
#include "parallel_core/training/run_data.h"

namespace tapestry {

/// Opens dataset_config.sft_data_path as open_data() does: reads and encodes every example, and
/// puts them into rows. Evaluation reads each example once: its rows are made up to whole global
/// batches with rows that hold nothing to learn. A row is what it is whatever the length of the
/// run, so that a run that goes on may become longer. The same on every rank. Errors as open_data,
/// sft:: and read_chat_format.
RunData open_examples(const AllConfig& config, DataUse use, const DataState* resumed);

/// What writes conversations among the examples as text: dataset_config.chat_template, else what
/// the folder of the tokenizer has. Nothing where there is none, or the folder's cannot be used.
std::optional<chat::ChatFormat> chat_format_of_examples(const AllConfig& config,
                                                        const data::Tokenizer& tokenizer);

}  // namespace tapestry

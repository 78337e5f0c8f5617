// What a run says of itself at its start.
#pragma once

#include <cstdint>
#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/training/memory_estimate.h"
#include "parallel_core/training/pretrain.h"

namespace tapestry {

/// What the configuration does not say.
struct StartFacts {
  std::string own_model;      ///< type of a model of one's own, with what this rank holds of it
  int ranks = 1;              ///< of the job
  int ranks_on_host = 1;      ///< that share this one's memory
  int64_t available = 0;      ///< bytes that this rank could use before it allocated any
  std::string progress_text;  ///< how collectives move on; empty in one process
};

/// About ten lines: model, data, tokenizer, layout, machine, precision, memory needed and there,
/// length of the run, files; then the keys whose values are not the defaults, section by section.
/// Each is "label  text", wrapped at `columns` with the text in a column of its own. The expected
/// time follows when the first steps have been measured (Progress).
std::string start_summary(const AllConfig& config,
                          const RunData& data,
                          const StartFacts& facts,
                          int columns);

/// "label     text", wrapped between words so that no line is longer than `columns` where words
/// allow it.
std::string summary_row(const std::string& label, const std::string& text, int columns);

/// 1234567 as "1,234,567".
std::string with_thousands(int64_t number);

}  // namespace tapestry

// What a run says of itself at its start.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/estimates/memory_estimate.h"
#include "parallel_core/training/pretrain.h"
#include "parallel_core/training/ranks/placement.h"

namespace tapestry {

/// What the configuration does not say.
struct StartFacts {
  std::string own_model;      ///< type of a model of one's own, with what this rank holds of it
  int ranks = 1;              ///< of the job
  int ranks_on_host = 1;      ///< that share this one's memory
  int64_t available = 0;      ///< bytes that this rank could use before it allocated any
  std::string progress_text;  ///< how collectives move on; empty in one process
  std::string time;           ///< see expected_time
  std::vector<RankPlacement> placements = {};  ///< of all ranks; empty: the rows are left out
};

/// About ten rows: model, data, tokenizer, layout, machine, cores of the first ranks, precision,
/// memory needed and there, length of the run, expected time, files; then the keys whose values are
/// not the defaults, section by section. A row is a line, however long: a terminal wraps it
/// (wrap_text).
std::string start_summary(const AllConfig& config, const RunData& data, const StartFacts& facts);

}  // namespace tapestry

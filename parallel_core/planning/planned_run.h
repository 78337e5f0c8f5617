// The run that is to be planned: the batch that it has, and what of it is still to be done.
#pragma once

#include <cstdint>
#include <optional>

#include "parallel_core/config/config.h"

namespace tapestry::planning {

struct PlannedRun {
  /// Of the job whose batch of a step is kept.
  int64_t data_parallel_size = 1;
  int64_t steps_done = 0;
};

/// The data-parallel ranks are those of parallel_config.data_parallel_size; else, of a run that
/// resumes, those of the job that wrote the checkpoint; else what `ranks` leave beside tensor,
/// pipeline and context parallelism. ValueError if those do not divide `ranks`. Reads the
/// checkpoint that the run would resume from; IoError as find_resume_point.
PlannedRun planned_run(const AllConfig& config, int64_t ranks);

/// "dp 4 | pp 1 | ..." (layout_line): 4; empty for any other text.
std::optional<int64_t> data_parallel_size_of(const std::string& layout_line);

}  // namespace tapestry::planning

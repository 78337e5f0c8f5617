// Times of a share of a model, measured.
#pragma once

#include "parallel_core/planning/costs/part_times.h"
#include "parallel_core/planning/costs/share_model.h"

namespace tapestry::planning {

/// How a share is measured.
struct Measuring {
  int ranks = 1;         ///< that compute at the same time, and share caches and memory
  int threads = 1;       ///< of each
  double seconds = 0.5;  ///< to spend on the steps, but for at least six
};

/// Trains the model for some steps on tokens that are made up, on ranks that are threads: as many
/// shares at once as there are ranks for, a multiple of ShareModel::ranks. Means over ranks and the
/// faster half of the steps, measured until two such means agree.
PartTimes measure_parts(const ShareModel& share, const Measuring& measuring);

}  // namespace tapestry::planning

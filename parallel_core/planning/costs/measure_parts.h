// Times of a share of a model, measured.
#pragma once

#include "parallel_core/planning/costs/part_times.h"
#include "parallel_core/planning/costs/share_model.h"

namespace tapestry::planning {

/// How a share is measured.
struct Measuring {
  int ranks = 1;         ///< that compute at the same time, and share caches and memory
  int threads = 1;       ///< of each
  double seconds = 0.5;  ///< to spend on the steps twice, each time on at least four
};

/// Trains the model for some steps on tokens that are made up, on ranks that are threads: as many
/// shares at once as there are ranks for, a multiple of ShareModel::ranks. Means over the ranks and
/// the middle half of the steps. All is begun anew, on new threads, until the two fastest agree
/// within 4 %, five times at most, and the fastest counts: what else runs on the machine only adds,
/// and so does a poor distribution of threads over cores, which may last.
PartTimes measure_parts(const ShareModel& share, const Measuring& measuring);

}  // namespace tapestry::planning

// How long the passes of a step take together, on ranks that may share cores.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel_core/planning/costs/pass_time.h"

namespace tapestry::planning {

/// The passes of one step.
struct PipelineWorkload {
  std::vector<std::vector<PassTime>> passes;  ///< [stage][chunk], of one micro-batch
  int64_t micro_batches = 1;
  double message = 0;          ///< seconds until a pass has what another stage has computed
  int64_t ranks_of_stage = 1;  ///< which compute at the same time
  double cores = 1;            ///< ranks of all stages that can compute at the same time
  /// How much of what ranks above that number would cost is lost: 1, all, if ranks always compute;
  /// less where some of them wait for others of their stage meanwhile.
  double crowding = 1;
};

/// Seconds from the first forward to the last backward pass, in the order of pipeline_order: each
/// pass waits for the one before it and for what it needs; where more ranks compute than there are
/// cores for, they share them equally.
double pipeline_seconds(const PipelineWorkload& work);

}  // namespace tapestry::planning

// The time of a step in a layout: what its ranks compute, send, and wait for.
#pragma once

#include <cstdint>

#include "parallel_core/planning/costs/messages.h"
#include "parallel_core/planning/layouts/layout.h"
#include "parallel_core/planning/time/model_times.h"

namespace tapestry::planning {

/// Where the ranks run.
struct Hosts {
  int64_t count = 1;
  int64_t ranks = 1;  ///< of the job
  double cores = 1;   ///< of one host, in teams of a rank's threads: ranks that compute at once

  int64_t ranks_on_host() const { return (ranks + count - 1) / count; }
};

/// Seconds of a step; the parts add up to `seconds`.
struct StepTime {
  double seconds = 0;
  double computing = 0;      ///< of the busiest stage, as if it never waited
  double communication = 0;  ///< collectives and messages that hold a rank up
  double waiting = 0;        ///< for other stages, and for cores that other ranks use
};

StepTime step_time(const Layout& layout,
                   const ModelTimes& times,
                   const MessageCosts& messages,
                   const Hosts& hosts);

}  // namespace tapestry::planning

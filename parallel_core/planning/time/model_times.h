// How long a rank computes for its share of the model.
#pragma once

#include <vector>

#include "parallel_core/estimates/time_estimate.h"
#include "parallel_core/planning/costs/part_times.h"
#include "parallel_core/planning/costs/share_model.h"
#include "parallel_core/planning/layouts/layout.h"
#include "parallel_core/planning/time/pipeline_time.h"

namespace tapestry::planning {

/// Seconds of one rank, without communication, while as many ranks compute as have cores.
struct ModelTimes {
  PassTime before;               ///< embeddings, of a micro-batch
  std::vector<PassTime> layers;  ///< of each layer of the model, of a micro-batch
  PassTime after;                ///< last norm, head and loss, layers that predict further tokens
  double update_per_parameter = 0;  ///< of a step: gradient norm and optimizer
  double fixed = 0;                 ///< of a step, whatever the model
};

/// From the work of a layout alone, as step_seconds: matrix products at a share of `speed`, memory,
/// a fixed time for each pass.
ModelTimes estimated_times(const Layout& layout, const MachineSpeed& speed);

/// From what the share of one of its ranks has taken (measure_parts).
ModelTimes measured_times(const Layout& layout, const ShareModel& share, const PartTimes& parts);

}  // namespace tapestry::planning

// How long a rank computes for its share of the model.
#pragma once

#include <vector>

#include "parallel_core/estimates/time_estimate.h"
#include "parallel_core/planning/costs/part_times.h"
#include "parallel_core/planning/costs/share_model.h"
#include "parallel_core/planning/layouts/layout.h"
#include "parallel_core/planning/time/pipeline_time.h"

namespace tapestry::planning {

/// Seconds of one rank while as many ranks compute as have cores.
struct ModelTimes {
  PassTime before;               ///< embeddings, of a micro-batch
  std::vector<PassTime> layers;  ///< of each layer of the model, of a micro-batch
  PassTime after;                ///< last norm, head and loss, layers that predict further tokens
  double update_per_parameter = 0;  ///< of a step: gradient norm and optimizer
  double fixed = 0;                 ///< of a step, whatever the model
  double crowding = 1;              ///< as PipelineWorkload::crowding
  /// Whether these are the times of ranks that exchange what tensor, context and expert parallelism
  /// exchanges.
  bool has_messages_of_layers = false;
  /// And of all data-parallel ranks of a stage: the update is that of what a rank updates, with the
  /// sums of gradients and the gathering of weights.
  bool has_messages_of_data = false;
};

/// From the work of a layout alone, as step_seconds: matrix products at a share of `speed`, memory,
/// a fixed time for each pass.
ModelTimes estimated_times(const Layout& layout, const MachineSpeed& speed);

/// From what the share of one of its stages has taken (measure_parts), where `turns` ranks shared
/// each core, as all ranks of a host do.
ModelTimes measured_times(const Layout& layout,
                          const ShareModel& share,
                          const PartTimes& parts,
                          double turns);

/// The same, whose stages by themselves have a core for each rank: passes are those of one stage
/// `alone`, slower by what has been lost where all ranks ran.
ModelTimes measured_times(const Layout& layout,
                          const ShareModel& share,
                          const PartTimes& parts,
                          double turns,
                          const PartTimes& alone);

}  // namespace tapestry::planning

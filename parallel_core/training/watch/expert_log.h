// What mixtures of experts did in the steps, for logs.
#pragma once

#include <string>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/training/step/step_observer.h"

namespace tapestry {

/// Of every mixture "layer: 3, drop_rate: 0.12500", the share of the step's assignments that was
/// dropped, and the loads of the experts with the most and the fewest tokens, in units of the mean:
/// "layer: 3, expert_load: max 1.500, min 0.250".
std::vector<std::string> expert_lines(const MoEStepStatistics& step);

/// Adds these lines to the log of rank 0 where moe_config.callback_moe_droprate asks for them, and
/// where tensorboard.log_expert_load_to_tensorboard does the share of the assignments that each
/// expert has got, the scalars "expert_load/LAYER/ep_E".
class ExpertLog final : public StepObserver {
 public:
  /// The configuration outlives the object.
  explicit ExpertLog(const AllConfig& config) : config_(config) {}
  StepPhase phase() const override { return StepPhase::kRecord; }
  void after(FinishedStep& step) override;

 private:
  const AllConfig& config_;
};

}  // namespace tapestry

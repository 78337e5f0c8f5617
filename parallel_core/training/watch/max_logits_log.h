// The largest attention scores of steps, for logs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/training/step/step_observer.h"

namespace tapestry {

/// Of every layer with attention, "step:[    5/  100] max_attention_logit/layers.0.attention: [v,
/// ...]" with the value of each head, then the same with "/mean" and "/max" and one value; four
/// significant digits. `total` steps of the run, 0 if that is not known.
std::vector<std::string> max_logit_lines(const HeadMaxima& maxima, int64_t step, int64_t total);

/// Brings the values of all stages to the first in every step that is measured for
/// monitor_config.max_logits_interval: into the record, and on rank 0 into the log, with the
/// scalars "max_attention_logit/layers.I.attention/mean" and "/max" for TensorBoard.
class MaxLogitsLog final : public StepObserver {
 public:
  /// The configuration outlives the object.
  MaxLogitsLog(const AllConfig& config, int64_t total)
      : interval_(config.monitor_config.max_logits_interval), total_(total) {}
  StepPhase phase() const override { return StepPhase::kMonitors; }
  void after(FinishedStep& step) override;

 private:
  std::optional<int64_t> interval_;
  int64_t total_;
};

}  // namespace tapestry

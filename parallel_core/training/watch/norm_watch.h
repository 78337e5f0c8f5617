// What the log says of spikes of the global norm, and what they end.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/training/step/norm_spikes.h"
#include "parallel_core/training/step/step_observer.h"

namespace tapestry {

/// A norm as an array of one float32 is printed: "[44.313248]", "[3.]", "[nan]".
std::string norm_text(double norm);

/// use_skip_data_by_global_norm: says which steps were skipped, and ends the run after
/// global_norm_spike_count_threshold in a row.
class SkipWatch final : public StepObserver {
 public:
  /// The arguments outlive the object.
  SkipWatch(TrainOneStepCell& cell, const AllConfig& config) : cell_(cell), config_(config) {}
  StepPhase phase() const override { return StepPhase::kMonitors; }
  void after(FinishedStep& step) override;

 private:
  TrainOneStepCell& cell_;
  const AllConfig& config_;
};

/// check_for_global_norm: ends the run at a spike at a step where there was none before, so that
/// whoever supervises it starts it again from a checkpoint. abnormal_global_norm.json in output_dir
/// knows the steps and their norms: {"300": [3.3], "600": [4.1, 4.2]}.
class AbnormalNormWatch final : public StepObserver {
 public:
  /// Reads the record on rank 0; IoError if it is none.
  explicit AbnormalNormWatch(const AllConfig& config);
  StepPhase phase() const override { return StepPhase::kMonitors; }
  void after(FinishedStep& step) override;

 private:
  void write() const;

  std::string path_;
  std::map<int64_t, std::vector<double>> record_;  // on rank 0
};

}  // namespace tapestry

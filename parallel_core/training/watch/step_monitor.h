// What monitor_config has measured in the steps.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/training/step/step_observer.h"
#include "parallel_core/training/watch/static_log.h"

namespace tapestry {

/// A step's values get their tags here; docs/monitoring.md defines them. All are in the step's
/// record; those with the format `log` are also lines of the rank's log, those with `tensorboard`
/// scalars of the record.
class StepMonitor final : public StepObserver {
 public:
  /// The cell and the configuration outlive the object.
  /// ValueError if a pattern of `target` chooses nothing on any rank. Collective.
  StepMonitor(TrainOneStepCell& cell, const AllConfig& config, RunLength length);

  /// Also asks the cell for what the checks of NaN and of the health of checkpoints look at.
  StepPhase phase() const override { return StepPhase::kMonitors; }
  void before(int64_t step) override;
  void after(FinishedStep& step) override;

 private:
  using Formats = MonitorConfig::Formats;
  struct Parameter {
    std::string name;
    const nn::Parameter* parameter;
    bool chosen;  // by target and invert
  };

  bool is_due(int64_t step) const;
  void show(FinishedStep& step, const Formats& formats, const std::string& tag, double value) const;
  void show_of_parameter(FinishedStep& step,
                         const Formats& formats,
                         const std::string& kind,
                         const Parameter& parameter,
                         double value) const;
  void take_local_losses(FinishedStep& step) const;
  void take_local_norms(FinishedStep& step) const;
  void list_local_norms(FinishedStep& step) const;
  void take_optimizer_state(FinishedStep& step) const;
  void take_weights(FinishedStep& step) const;
  void take_throughput(FinishedStep& step) const;
  void take_times(FinishedStep& step);
  void print_structure(FinishedStep& step) const;

  TrainOneStepCell& cell_;
  const AllConfig& config_;
  const MonitorConfig& monitor_;
  RunLength length_;
  std::vector<Parameter> parameters_;
  std::set<std::string> all_;
  std::set<std::string> token_tables_;
  int64_t steps_ = 0;
  // since the ranks' times were compared
  int64_t timed_steps_ = 0;
  double compute_ms_ = 0;
};

/// "Epoch:[  1/  2], step:[    1/ 6500] local_norm/x: 0.1234", the value as value_format says.
std::string monitor_log_line(const StaticLogPlace& place,
                             const std::string& tag,
                             double value,
                             const std::string& format);

}  // namespace tapestry

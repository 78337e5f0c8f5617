// What the log and the terminal say of the steps.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "parallel_core/config/config.h"
#include "parallel_core/training/step/step_observer.h"
#include "parallel_core/training/watch/progress.h"
#include "parallel_core/training/watch/static_log.h"

namespace tapestry {

/// The line that log readers know:
/// "train: Epoch:0, Step:5, Loss: 10.341485, Finite_grads: True, Loss_scale: 4096.0,
/// Learning_rate: (1.250000e-06,1.250000e-06,), Time: 1403.24 ms".
///
/// Of a model that predicts further tokens, "mtp_1_loss: 0.523104, " and so on follow the loss.
std::string train_log_line(const StepRecord& record, const StepResult& result);

/// The same, and what happened since the last such line: ", Tokens/s: 1460, Mean_loss: 10.352117,
/// Remaining: 1:02:03"; without Remaining where the number of steps is not known.
std::string train_log_line(const StepRecord& record, const StepResult& result, const Pace& pace);

/// What a terminal shows in place of it, in 70 columns at most:
/// "step 1234/5000 | loss 10.3415 | lr 1.25e-06 | 1403 ms | 1:02 left | 1460 tok/s"; steps of an
/// unknown `total`, 0, without that and the time that is left; what has no room is left out, from
/// the end. Gradients that are not finite, and
/// steps that are skipped, have lines of their own.
std::string terminal_step_line(const StepRecord& record,
                               const StepResult& result,
                               const Pace& pace,
                               int64_t total);

/// "task: rewards/accuracies: 0.875, rewards/margins: 0.0132": what a StepObjective has measured.
std::string task_log_line(const NamedValues& values);

/// "pipeline: stages waited for 12.50 % of the passes, theory 11.11 %".
std::string bubble_line(const PipelineBubble& bubble);

/// Logs a line at log_interval and after the last step, evaluations, steps that are not finite, and
/// once what the first steps say of the run; shows the progress of each step on a terminal.
class StepLog final : public StepObserver {
 public:
  /// `flops` of a step of the whole batch on the busiest rank, 0 if that is not known. The
  /// configuration outlives the object.
  StepLog(const AllConfig& config, RunLength length, double flops)
      : config_(config), length_(std::move(length)), flops_(flops), progress_(length_.total) {}
  StepPhase phase() const override { return StepPhase::kLog; }
  void after(FinishedStep& step) override;

 private:
  void time_first_steps(const FinishedStep& step);
  void log_step(const FinishedStep& step);
  void log_evaluations(const StepRecord& record) const;

  const AllConfig& config_;
  RunLength length_;
  double flops_;
  Progress progress_;
  // The mean of the second and third step, which have memory and threads, or the first alone where
  // it is long or there are no more.
  int64_t steps_ = 0;
  double mean_ms_ = 0;
  bool time_is_known_ = false;
};

}  // namespace tapestry

// The two lines of a step that MindFormers' static configurations log.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel_core/training/step/metrics.h"

namespace tapestry {

/// How long a run is, as its lines tell it.
struct RunLength {
  int64_t total = 0;                ///< steps; 0 if that is not known
  std::vector<int64_t> epoch_ends;  ///< of a run that training_config.epochs limits: steps that are
                                    ///< done when each epoch of its data ends
};

/// Where a step stands, and what the lines say beside its record and result.
struct StaticLogPlace {
  int64_t epoch = 1;   ///< from 1
  int64_t epochs = 1;  ///< that the run enters
  int64_t step = 1;    ///< of the epoch, from 1
  int64_t steps_per_epoch = 1;
  int64_t done = 1;                    ///< steps of the run, with this one
  int64_t total = 1;                   ///< steps of the run; `done` where nobody knows
  double samples_per_second = 0;       ///< of a rank
  std::optional<double> teraflops;     ///< a second, of a rank
  std::optional<double> seconds_left;  ///< left out: the time of this step for each that is left
};

/// The place of step `step`, from 1. Without epochs the run is one. An epoch that ends within a
/// batch ends with that step, so epochs may differ by a step.
StaticLogPlace place_of_step(int64_t step, const RunLength& length);

/// "Epoch:[  1/  2], step:[    1/ 6500]".
std::string place_text(const StaticLogPlace& place);

/// "{ Epoch:[  1/  2], step:[    1/ 6500], loss: 0.000, per_step_time: 166756ms, lr: 0.0, overflow
/// cond: False, loss_scale: 1.0, global_norm: [44.313248], train_throughput_per_npu: 2.849T".
std::string static_step_line(const StaticLogPlace& place,
                             const StepRecord& record,
                             const StepResult& result);

/// "mtp_1_loss: 0.523104, mtp_2_loss: 0.551420, ": of each further token that is predicted what it
/// adds to the objective; empty without any.
std::string ahead_losses_text(const StepResult& result);

/// "   0.0% |   ...   | 0.00600 samples/s/p  25 days, 2:07:47 }", with a bar of 50 columns.
std::string static_progress_line(const StaticLogPlace& place, const StepRecord& record);

/// "25 days, 2:07:47", "1 day, 5:50:52", "0:03:09".
std::string days_text(double seconds);

}  // namespace tapestry

// The progress line of a run on a terminal.
#pragma once

#include <cstdint>
#include <string>

#include "parallel_core/training/metrics.h"

namespace tapestry {

/// Bar, step, loss, tokens per second and remaining time, from a moving average of the step times
/// (each new step weighs a tenth).
class Progress {
 public:
  /// `total` steps; 0 if that is not known, then there is no bar and no remaining time.
  explicit Progress(int64_t total) : total_(total) {}

  void update(const StepRecord& record, const StepResult& result);
  /// The line for the last update.
  std::string line() const;

 private:
  int64_t total_;
  int64_t step_ = 0;
  double loss_ = 0;
  double average_ms_ = 0;
  double tokens_per_second_ = 0;
};

/// "1:02:03" or "2:03".
std::string format_duration(double seconds);

}  // namespace tapestry

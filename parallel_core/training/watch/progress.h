// How fast a run goes on, for its log and for the line of progress on a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "parallel_core/training/step/metrics.h"
#include "text/util/numbers.h"

namespace tapestry {

/// What happened since the last line of the log.
struct Pace {
  double tokens_per_second = 0;
  double mean_loss = 0;
  std::optional<double> seconds_left;  ///< empty where the number of steps is not known
};

/// Rates and remaining time. The line of progress has them from a moving average of the step times
/// (each new step weighs a tenth), the log from all steps since its last line.
class Progress {
 public:
  /// `total` steps; 0 if that is not known, then there is no bar and no remaining time.
  explicit Progress(int64_t total) : total_(total) {}

  /// Takes a step in, and shows it if there is a terminal, at most ten times a second.
  void update(const StepRecord& record, const StepResult& result);
  /// The line for the last update, at least three columns shorter than the terminal: a bar as wide
  /// as the room allows, step, loss, tokens per second and remaining time. Where the room is too
  /// small they go without, the bar first, then the rate, the loss and the remaining time.
  std::string line(int columns) const;
  /// Of the steps since the last call.
  Pace take_pace();
  /// Steps since take_pace.
  int64_t steps_since_pace() const { return steps_; }

 private:
  std::string with_bar(const std::string& text, size_t room) const;

  int64_t total_;
  int64_t step_ = 0;
  double loss_ = 0;
  double average_ms_ = 0;
  double tokens_per_second_ = 0;
  // since take_pace
  int64_t steps_ = 0;
  double sum_ms_ = 0;
  double sum_tokens_ = 0;
  double sum_loss_ = 0;
  std::chrono::steady_clock::time_point next_shown_;
};

}  // namespace tapestry

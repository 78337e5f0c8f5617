// What a Prometheus server sees of a run.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "autograd/tensor/allocator.h"

namespace tapestry::telemetry {

enum class RunState : uint8_t { kRunning, kFinished, kStopped, kFailed };

/// "running", "finished", "stopped" (on request), "failed".
std::string_view name_of(RunState state);

/// What does not change while a run trains.
struct RunFacts {
  std::string run;
  std::string host;
  int rank = 0;
  int ranks = 1;
  std::string layout;
  std::string output_dir;
  std::string checkpoints;    ///< the folder that they are in
  int64_t planned_steps = 0;  ///< 0: not known
};

/// An evaluation's loss and its step.
struct EvaluationLoss {
  double loss = 0;
  int64_t step = 0;
};

/// What the last step has said. Times are seconds since 1970.
struct RunMetrics {
  RunState state = RunState::kRunning;
  double started = 0;
  double last_step_time = 0;  ///< when it ended; before the first one as `started`
  int64_t step = 0;           ///< of the whole run
  int64_t steps_here = 0;     ///< since this start; 0: there is no last step yet
  int64_t epoch = 0;
  int64_t tokens = 0;
  int64_t samples = 0;
  int64_t skipped = 0;
  int64_t spikes = 0;
  int64_t not_finite = 0;
  double step_seconds = 0;
  double loss = 0;
  double learning_rate = 0;
  double gradient_norm = 0;
  double loss_scale = 1;
  MemoryStats memory;
  std::optional<EvaluationLoss> validation;
  std::optional<EvaluationLoss> test;
};

/// The metrics of a run, written by its loop and read by other threads.
class SharedMetrics {
 public:
  explicit SharedMetrics(RunFacts facts) : facts_(std::move(facts)) {}

  /// f(RunMetrics&), while nobody reads.
  template <class F>
  void change(F&& f) {
    const std::lock_guard lock(mutex_);
    f(metrics_);
  }
  /// All of it in Prometheus' text format, with memory and newest checkpoint as they are now.
  std::string exposition() const;
  /// "running, step 12 of 100, 3 s ago".
  std::string health() const;

 private:
  RunMetrics copy() const {
    const std::lock_guard lock(mutex_);
    return metrics_;
  }

  const RunFacts facts_;
  mutable std::mutex mutex_;
  RunMetrics metrics_;
};

/// Seconds since 1970, with fractions.
double unix_seconds();

}  // namespace tapestry::telemetry

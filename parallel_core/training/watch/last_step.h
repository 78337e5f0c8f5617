// The end of a run that only shows what its first steps compute.
#pragma once

#include <cstdint>

#include "parallel_core/training/step/step_observer.h"

namespace tapestry {

/// Ends the run after a number of steps, without an error.
class LastStep final : public StepObserver {
 public:
  explicit LastStep(int64_t steps) : steps_(steps) {}
  void after(FinishedStep& step) override { step.stops = step.record.step >= steps_; }

 private:
  int64_t steps_;
};

}  // namespace tapestry

// Pieces of the loop that rehearse a run: its first steps, with roundings of another machine.
#pragma once

#include <cstdint>
#include <memory>

#include "diagnosis/dump/iteration_set.h"
#include "diagnosis/dump/run/rounding_noise.h"
#include "parallel_core/training/step/step_observer.h"

namespace tapestry {

/// Moves the results of ops (RoundingNoise) in the steps of a dump.
class RoundedSteps final : public StepObserver {
 public:
  RoundedSteps(uint64_t draw, dump::IterationSet iterations)
      : draw_(draw), iterations_(std::move(iterations)) {}

  void before(int64_t step) override {
    if (iterations_.contains(step - 1)) {
      noise_ = std::make_unique<RoundingNoise>(draw_ * 1000003 + static_cast<uint64_t>(step));
      scope_ = std::make_unique<ObserverScope>(*noise_);
    }
  }
  void after(FinishedStep& /*step*/) override { scope_.reset(); }

 private:
  uint64_t draw_;
  dump::IterationSet iterations_;
  std::unique_ptr<RoundingNoise> noise_;
  std::unique_ptr<ObserverScope> scope_;
};

}  // namespace tapestry

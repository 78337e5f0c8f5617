// Ends a run at the first number that is not finite, and says where it came from.
#pragma once

#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/training/step/step_observer.h"

namespace tapestry {

/// check_for_nan_in_loss_and_grad and check_for_nan_in_grad. All ranks see that the loss or the
/// global norm is not finite; the rank and the parameter that are named are the ones nearest to the
/// loss, where the backward pass had the value first. An overflow under a dynamic loss scale is
/// none as long as the loss is finite: the scale comes down.
class NanWatch final : public StepObserver {
 public:
  /// The arguments outlive the object.
  NanWatch(TrainOneStepCell& cell, const AllConfig& config) : cell_(cell), config_(config) {}
  StepPhase phase() const override { return StepPhase::kGuards; }
  void after(FinishedStep& step) override;

 private:
  std::string own_finding(const FinishedStep& step) const;

  TrainOneStepCell& cell_;
  const AllConfig& config_;
};

}  // namespace tapestry

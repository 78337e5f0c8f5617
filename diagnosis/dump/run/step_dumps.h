// Intermediate values, gradients and weights of chosen steps, as files.
#pragma once

#include <cstdint>
#include <memory>

#include "parallel_core/config/config.h"
#include "parallel_core/training/step/step_observer.h"
#include "parallel_core/transformer/activation_recorder.h"

namespace tapestry {

/// Writes what dump_activation_steps, dump_grad_steps and dump_weight_steps name to output_dir:
/// {acts,grads,weights}_step_N.safetensors.
class StepDumps final : public StepObserver {
 public:
  /// The arguments outlive the object, which is the cell's gradient observer while it lives if
  /// gradients are to be written.
  StepDumps(TrainOneStepCell& cell, const AllConfig& config);
  ~StepDumps() override;

  StepPhase phase() const override { return StepPhase::kDumps; }
  void before(int64_t step) override;
  void after(FinishedStep& step) override;

 private:
  TrainOneStepCell& cell_;
  const AllConfig& config_;
  bool writes_;
  std::unique_ptr<ActivationRecorder> activations_;  // of the step under way
};

}  // namespace tapestry

// The values of a reference in place of a model's own, wherever the model reports one that it goes
// on with: each stretch between two such points is computed from what the reference has there.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "autograd/tape/observer.h"
#include "diagnosis/verify/injection/reference_values.h"
#include "parallel_core/config/config.h"
#include "parallel_core/training/step/step_observer.h"

namespace tapestry {

/// In the steps that the reference's dump has, forward: embedding, layers.I.{attention_norm,
/// attention_residual, ffn_norm, output}, layers.I.attention.{query, key, value, q, k, v, context},
/// layers.I.mlp.active, final_norm, and logits where the loss is not fused with their product.
/// Backward: the gradients of these by the names Gradients/NAME; that of attention_residual is
/// Gradients/layers.I.attention, and that of output Gradients/layers.I.mlp, whose sum with the
/// residual they are. What the reference lacks is left as computed.
///
/// A rank takes its part of the whole (ObservedValue::placement) for the samples that it computes.
/// Other observers, a dump among them, are shown what was computed before it is replaced. Values
/// are converted to the dtype of ours. Gradients are those of the loss as it is scaled, so both
/// sides have the same loss scale.
class InjectedValues final : public StepObserver, private Observer {
 public:
  /// The cell outlives it.
  InjectedValues(TrainOneStepCell& cell, const AllConfig& config, ReferenceValues reference);

  void before(int64_t step) override;
  /// Fails the run if its last step has come and nothing was injected in any.
  void after(FinishedStep& step) override;

  int64_t values() const { return static_cast<int64_t>(values_.size()); }
  int64_t gradients() const { return static_cast<int64_t>(gradients_.size()); }

 private:
  bool wants_values() const override { return true; }
  bool replaces_values() const override { return true; }
  Tensor replacement(const ObservedValue& value) override;
  void phase_begins(const PhaseRun& phase) override;

  struct Place;
  Tensor whole_rows(const std::string& name, const Place& place);
  Tensor gradient_of(const std::string& name, const Place& place);

  TrainOneStepCell& cell_;
  const AllConfig& config_;
  std::shared_ptr<ReferenceValues> reference_;
  std::unique_ptr<ObserverScope> scope_;
  bool active_ = false;
  std::set<std::string> values_;     // of the step under way
  std::set<std::string> gradients_;  // the same
  std::set<std::string> missing_;
  bool injected_any_ = false;
};

}  // namespace tapestry

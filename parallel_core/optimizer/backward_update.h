// Updating each parameter during the backward pass, so that its gradient can go at once.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "nn/module.h"
#include "optim/optimizer.h"

namespace tapestry {

/// Runs the optimizer's step for a parameter as soon as its gradient is complete, and drops the
/// gradient: at no time do those of all parameters exist. So nothing that needs all of them before
/// an update is possible: no clipping by norm, no second micro-batch, no skipping of a step.
class BackwardUpdate {
 public:
  /// Puts hooks on the model's parameters, which do nothing any more once this object is gone. The
  /// optimizer's names are the model's. `with_norms`: also take each logical tensor's norm.
  BackwardUpdate(const nn::Module& model, optim::Optimizer& optimizer, bool with_norms);
  BackwardUpdate(const BackwardUpdate&) = delete;
  BackwardUpdate& operator=(const BackwardUpdate&) = delete;
  ~BackwardUpdate();

  /// Before the backward pass of a step. In that pass a gradient that is not finite is a
  /// RuntimeError that names the parameter: other weights have changed already.
  void start(const optim::GradTransform& transform);

  /// In place of the backward pass, which does not come.
  void cancel();

  struct Norms {
    double total = 0;                       ///< over all gradients, unscaled
    std::map<std::string, double> logical;  ///< by logical tensor
  };
  /// After it: updates the parameters that got no gradient with zeros.
  Norms finish();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tapestry

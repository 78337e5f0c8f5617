// Stochastic gradient descent.
#pragma once

#include "optim/optimizer.h"

namespace tapestry::optim {

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

/// g = g + wd p; buf = g at the first step, later momentum buf + (1 - dampening) g;
/// p = p - lr (g + momentum buf) with nesterov, else p - lr buf. State: momentum_buffer, unless
/// momentum is 0. Source: Sutskever et al. 2013, in the form of PyTorch and MindSpore with the
/// learning rate outside the buffer. ValueError for a negative setting, for nesterov without
/// momentum or with dampening, or for a group with betas.
class SGD final : public Optimizer {
 public:
  explicit SGD(const TensorList& params, SGDOptions options = {});
  SGD(std::vector<ParamGroup> groups, SGDOptions options);

  std::string type_name() const override { return "SGD"; }

 protected:
  void check_group(const ParamGroup& group) const override;
  std::vector<StateKind> state_kinds(const ParamGroup& group, bool is_matrix) const override;
  void update(std::span<const Update> updates, const GradTransform& transform) override;

 private:
  SGDOptions options_;
};

}  // namespace tapestry::optim

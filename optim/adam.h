// Adam and AdamW.
#pragma once

#include "optim/optimizer.h"

namespace tapestry::optim {

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  StateStorage storage = {};
};

/// m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p = p - lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) +
/// eps). Adam couples the decay (g = g + wd p; Kingma & Ba 2015, algorithm 1); AdamW decays the
/// parameter (p = p (1 - lr wd); Loshchilov & Hutter 2019). States: exp_avg, exp_avg_sq. ValueError
/// for betas outside [0, 1), of a group or of all, or a negative lr, eps or weight_decay.
class AdamBase : public Optimizer {
 protected:
  AdamBase(std::vector<ParamGroup> groups, AdamOptions options, bool decoupled);

  void check_group(const ParamGroup& group) const override;
  std::vector<StateKind> state_kinds(const ParamGroup& group, bool is_matrix) const override;
  void update(std::span<const Update> updates, const GradTransform& transform) override;

 private:
  AdamOptions options_;
  bool decoupled_;
};

class Adam final : public AdamBase {
 public:
  explicit Adam(const TensorList& params, AdamOptions options = {})
      : AdamBase(single_group(params), options, false) {}
  Adam(std::vector<ParamGroup> groups, AdamOptions options)
      : AdamBase(std::move(groups), options, false) {}
  std::string type_name() const override { return "Adam"; }
};

class AdamW final : public AdamBase {
 public:
  explicit AdamW(const TensorList& params, AdamOptions options = {})
      : AdamBase(single_group(params), options, true) {}
  AdamW(std::vector<ParamGroup> groups, AdamOptions options)
      : AdamBase(std::move(groups), options, true) {}
  std::string type_name() const override { return "AdamW"; }
};

}  // namespace tapestry::optim

// Lion: the sign of an average.
#pragma once

#include "optim/optimizer.h"

namespace tapestry::optim {

struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
  StateStorage storage = {};
};

/// u = sign(b1 m + (1-b1) g), sign(0) = 0; m = b2 m + (1-b2) g; p = p - lr (u + wd p). State:
/// exp_avg. Every element moves by lr, so that wants to be 3 to 10 times smaller than AdamW's, and
/// the decay as much larger. Source: Chen et al. 2023, arXiv:2302.06675, algorithm 2. ValueError
/// for betas outside [0, 1), of a group or of all, a negative lr or weight_decay, or storage that
/// needs Adam's second moment.
class Lion final : public Optimizer {
 public:
  explicit Lion(const TensorList& params, LionOptions options = {});
  Lion(std::vector<ParamGroup> groups, LionOptions options);

  std::string type_name() const override { return "Lion"; }

 protected:
  void check_group(const ParamGroup& group) const override;
  std::vector<StateKind> state_kinds(const ParamGroup& group, bool is_matrix) const override;
  void update(std::span<const Update> updates, const GradTransform& transform) override;

 private:
  LionOptions options_;
};

}  // namespace tapestry::optim

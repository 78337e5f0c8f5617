// CAME: Adafactor with confidence in its averages.
#pragma once

#include <optional>

#include "optim/factored_step.h"

namespace tapestry::optim {

struct CameOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  std::optional<double> beta2 = {};  ///< left out: 1 - t^-decay_rate
  double beta3 = 0.99;               ///< of the instability
  double decay_rate = 0.8;
  double eps1 = 1e-30;  ///< added to squared gradients
  double eps2 = 1e-3;   ///< least scale of a parameter
  double eps3 = 1e-16;  ///< added to squared residuals
  double clip_threshold = 1;
  bool scale_parameter = false;  ///< step sizes are relative to RMS(p)
  double weight_decay = 0;
};

/// u as Adafactor has it, clipped; m = b1 m + (1-b1) u. Matrix: s = (u - m)^2 + eps3, averages R'
/// and C' of its rows' and columns' means with beta3, S = R' C'^T / mean(R'), d = m / sqrt(S);
/// vector: d = m. a = lr, times max(eps2, RMS(p)) with scale_parameter; p = p - a wd p - a d.
///
/// The defaults are those of MindFormers; the authors' program has beta2 = 0.999, beta3 = 0.9999.
/// States: those of Adafactor, exp_avg, and of a logical tensor with two or more axes
/// exp_avg_res_row and exp_avg_res_col. Source: Luo et al. 2023, arXiv:2307.02047, algorithm 2.
/// ValueError for a setting outside its range (beta1 = 0 leaves no residual to divide by), or a
/// group with betas.
class Came final : public FactoredOptimizer {
 public:
  explicit Came(const TensorList& params, CameOptions options = {});
  Came(std::vector<ParamGroup> groups, CameOptions options);

  std::string type_name() const override { return "Came"; }

 protected:
  void check_group(const ParamGroup& group) const override;
  std::vector<StateKind> state_kinds(const ParamGroup& group, bool is_matrix) const override;
  void update(std::span<const Update> updates, const GradTransform& transform) override;

 private:
  CameOptions options_;
};

}  // namespace tapestry::optim

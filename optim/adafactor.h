// Adafactor: second moments of rows and columns.
#pragma once

#include <optional>

#include "optim/factored_step.h"

namespace tapestry::optim {

struct AdafactorOptions {
  /// Left out: the paper's relative step, min(1e-2, 1 / sqrt(t)), or with warmup_init min(1e-6 t,
  /// 1 / sqrt(t)), whatever the groups' lr.
  std::optional<double> lr = {};
  bool warmup_init = false;
  bool scale_parameter = true;  ///< step sizes are relative to RMS(p)
  double eps1 = 1e-30;          ///< added to squared gradients
  double eps2 = 1e-3;           ///< least scale of a parameter
  double clip_threshold = 1;
  double decay_rate = 0.8;
  std::optional<double> beta1 = {};  ///< left out: no average, and no memory for it
  double weight_decay = 0;
};

/// b2 = 1 - t^-decay_rate; q = g^2 + eps1. Matrix: R = b2 R + (1-b2) mean of q over columns, C of q
/// over rows, V = R C^T / mean(R); vector: V = b2 V + (1-b2) q. u = g / sqrt(V), u = u / max(1,
/// RMS(u) / clip_threshold); a = lr, times max(eps2, RMS(p)) with scale_parameter; with beta1 m =
/// b1 m + (1-b1) a u takes the place of a u; p = p - a wd p - a u. RMS is over a logical tensor.
///
/// States: exp_avg_sq_row [..., rows] and exp_avg_sq_col [..., columns] of a logical tensor with
/// two or more axes, exp_avg_sq of others, exp_avg with beta1. Source: Shazeer & Stern 2018,
/// arXiv:1804.04235, algorithms 4 and 5. ValueError for a setting outside its range, or a group
/// with betas.
class Adafactor final : public FactoredOptimizer {
 public:
  explicit Adafactor(const TensorList& params, AdafactorOptions options = {});
  Adafactor(std::vector<ParamGroup> groups, AdafactorOptions options);

  std::string type_name() const override { return "Adafactor"; }

 protected:
  void check_group(const ParamGroup& group) const override;
  std::vector<StateKind> state_kinds(const ParamGroup& group, bool is_matrix) const override;
  void update(std::span<const Update> updates, const GradTransform& transform) override;

 private:
  AdafactorOptions options_;
};

}  // namespace tapestry::optim

// The schedule family of lr_decay_style: what the words of a configuration mean.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "optim/schedule_curves.h"

namespace tapestry {

/// The keys of optimizer_config and training_config that the second family reads. Iterations are
/// turned into samples with the global batch size.
struct OptimizerParamSchedulerOptions {
  double learning_rate = 1e-3;
  double min_lr = 0;
  /// Rate at the start of a warm-up. Default: step s, from 1, of a warm-up of W steps has
  /// learning_rate s / W, so that none has 0.
  std::optional<double> lr_warmup_init;
  std::string lr_decay_style = "constant";
  std::string lr_wsd_decay_style = "linear";
  /// Unset, with both below: each group keeps its own.
  std::optional<double> weight_decay;
  std::optional<double> start_weight_decay;  ///< default: weight_decay, or 0
  std::optional<double> end_weight_decay;    ///< default: weight_decay, or 0
  std::string weight_decay_incr_style = "constant";
  std::optional<double> lr_warmup_fraction;  ///< of the decay length; goes before the counts
  std::optional<double> lr_num_cycles;       ///< default: cosine, cooldown 0.5, cosine_restarts 1
  double lr_decay_power = 1;                 ///< of polynomial
  std::optional<double> final_lr;            ///< of cooldown; default: min_lr
  int64_t lr_keep_iters = 0;                 ///< of cooldown, as the next: of global_batch_size
  int64_t lr_final_iters = 0;
  int64_t lr_restart_iters = 0;  ///< of warm_restarts: of the first cycle
  int64_t lr_restart_mult = 1;   ///< of warm_restarts: each cycle is so many times the last

  int64_t global_batch_size = 1;
  int64_t training_iters = 0;  ///< above 0: lengths in iterations
  int64_t lr_warmup_iters = 0;
  std::optional<int64_t> lr_decay_iters;
  std::optional<int64_t> lr_wsd_decay_iters;
  int64_t train_samples = 0;  ///< else: lengths in samples
  int64_t lr_warmup_samples = 0;
  std::optional<int64_t> lr_decay_samples;
  std::optional<int64_t> lr_wsd_decay_samples;
};

/// Position N in samples seen, without those of skipped steps: of lengths in samples
/// Position::samples where that is set, else global batches; in this order: 0 < warmup and N <=
/// warmup: init + (max - init) N / warmup; constant: max; N > decay: min; inverse-square-root:
/// max(min, max sqrt(max(warmup, 1)) / sqrt(max(N, 1))); else min + f (max - min) with r = (N -
/// warmup) / (decay - warmup): linear 1 - r, cosine (cos(2 pi cycles r) + 1) / 2 with half a cycle,
/// polynomial (1 - r)^power, cosine_restarts (cos(pi (cycles r mod 1)) + 1) / 2, WSD 1 until decay
/// - wsd and then 1 - q, (cos(pi q) + 1) / 2 or 2 0.5^q - 1 with q = (N - (decay - wsd)) / wsd.
///
/// cooldown: 1 for `keep` after the warm-up, then as cosine until decay, min for `final`, then
/// final_lr. Two do not end at decay: cosine_annealing (cos(pi r) + 1) / 2, which rises again, and
/// warm_restarts (cos(pi s) + 1) / 2 with the share s of the cycle that N - warmup is in.
///
/// Source of polynomial, cosine_restarts, cooldown, cosine_annealing and warm_restarts:
/// MindFormers, mindformers/core/lr/lr_schedule.py. Weight decay goes from start to end over the
/// run. ValueError, naming the key, for values that do not fit together.
class OptimizerParamScheduler final : public optim::Schedule {
 public:
  explicit OptimizerParamScheduler(const OptimizerParamSchedulerOptions& options);
  double learning_rate(Position position) const override;
  std::optional<double> weight_decay(Position position) const override;

 private:
  double samples_seen(Position position) const;

  int64_t global_batch_size_;
  bool by_samples_;             // its lengths are in samples, not in iterations
  optim::Curve learning_rate_;  // of samples
  optim::Curve weight_decay_;   // empty: of no concern to it
};

}  // namespace tapestry

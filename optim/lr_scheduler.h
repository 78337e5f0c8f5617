// Learning-rate and weight-decay schedules, in the two families of the dynamic-graph API.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "optim/optimizer.h"

namespace tapestry::optim {

/// A schedule is a function of how far training is. `applied` counts updates that changed weights,
/// `seen` all steps including those skipped for an overflow or for their data, `skipped` the latter,
/// which no schedule counts.
class Schedule {
 public:
  struct Position {
    int64_t applied = 0;
    int64_t seen = 0;
    int64_t skipped = 0;
  };
  virtual ~Schedule() = default;

  /// Values for the update that comes after the given position.
  virtual double learning_rate(Position position) const = 0;
  virtual double weight_decay(Position position) const = 0;

  /// Writes both, times each group's factors, into the groups.
  void apply(Optimizer& optimizer, Position position) const;
};

/// The same values for ever.
class ConstantSchedule final : public Schedule {
 public:
  ConstantSchedule(double learning_rate, double weight_decay)
      : learning_rate_(learning_rate), weight_decay_(weight_decay) {}
  double learning_rate(Position /*position*/) const override { return learning_rate_; }
  double weight_decay(Position /*position*/) const override { return weight_decay_; }

 private:
  double learning_rate_;
  double weight_decay_;
};

struct LearningRateSchedulerOptions {
  double learning_rate = 1e-3;
  double end_learning_rate = 0;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 1;
  double power = 1;
  bool use_cosine = true;
  double weight_decay = 0;  ///< constant
};

/// `learning_rate_scheduler_kwargs`. With s updates applied: s < warmup_steps: lr s / warmup_steps;
/// then with r = min(s, decay_steps) / decay_steps: end + (lr - end) (1 + cos(pi r)) / 2, or
/// without cosine end + (lr - end) (1 - r)^power. The decay counts from 0, so there is a jump at
/// the end of the warm-up. ValueError, naming the key, for a value outside its range.
class LearningRateScheduler final : public Schedule {
 public:
  explicit LearningRateScheduler(LearningRateSchedulerOptions options);
  double learning_rate(Position position) const override;
  double weight_decay(Position /*position*/) const override { return options_.weight_decay; }

 private:
  LearningRateSchedulerOptions options_;
};

/// The keys of optimizer_config and training_config that the second family reads. Iterations are
/// turned into samples with the global batch size.
struct OptimizerParamSchedulerOptions {
  double learning_rate = 1e-3;
  double min_lr = 0;
  double lr_warmup_init = 0;
  std::string lr_decay_style = "constant";
  std::string lr_wsd_decay_style = "linear";
  double weight_decay = 0;
  std::optional<double> start_weight_decay;  ///< default: weight_decay
  std::optional<double> end_weight_decay;    ///< default: weight_decay
  std::string weight_decay_incr_style = "constant";
  std::optional<double> lr_warmup_fraction;  ///< of the decay length; goes before the counts

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

/// Position N in samples seen, without those of skipped steps; in this order: 0 < warmup and N <= warmup: init + (max - init) N /
/// warmup; constant: max; N > decay: min; inverse-square-root: max(min, max sqrt(max(warmup, 1)) /
/// sqrt(max(N, 1))); else min + f (max - min) with r = (N - warmup) / (decay - warmup): linear
/// 1 - r, cosine (cos(pi r) + 1) / 2, WSD 1 until decay - wsd and then 1 - q, (cos(pi q) + 1) / 2
/// or 2 0.5^q - 1 with q = (N - (decay - wsd)) / wsd. Weight decay goes from start to end over the
/// run. ValueError, naming the key, for values that do not fit together.
class OptimizerParamScheduler final : public Schedule {
 public:
  explicit OptimizerParamScheduler(OptimizerParamSchedulerOptions options);
  double learning_rate(Position position) const override;
  double weight_decay(Position position) const override;

 private:
  double samples_seen(Position position) const;

  OptimizerParamSchedulerOptions options_;
  double warmup_ = 0;  // all lengths in samples; a fraction of the decay is not rounded
  double decay_ = 0;
  std::optional<double> wsd_;
  double incr_ = 0;
  double start_wd_ = 0;
  double end_wd_ = 0;
};

}  // namespace tapestry::optim

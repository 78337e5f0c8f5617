// Learning-rate and weight-decay schedules; see schedule_curves.h for parts to compose them of.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "optim/optimizer.h"

namespace tapestry::optim {

/// A schedule is a function of how far training is. `applied` counts updates that changed weights,
/// `seen` all steps including those skipped for an overflow or for their data, `skipped` those of
/// them that no schedule counts. `samples` are the sequences of the steps that count, where steps
/// have different numbers of them; unset: all have as many.
class Schedule {
 public:
  struct Position {
    int64_t applied = 0;
    int64_t seen = 0;
    int64_t skipped = 0;
    std::optional<int64_t> samples = std::nullopt;
  };
  virtual ~Schedule() = default;

  /// Values for the update that comes after the given position.
  virtual double learning_rate(Position position) const = 0;
  /// Unset: each group keeps its own.
  virtual std::optional<double> weight_decay(Position position) const = 0;

  /// Writes both, times each group's factors, into the groups, but for what a group keeps
  /// (ParamGroup).
  void apply(Optimizer& optimizer, Position position) const;
};

/// The same values for ever.
class ConstantSchedule final : public Schedule {
 public:
  explicit ConstantSchedule(double learning_rate, std::optional<double> weight_decay = {})
      : learning_rate_(learning_rate), weight_decay_(weight_decay) {}
  double learning_rate(Position /*position*/) const override { return learning_rate_; }
  std::optional<double> weight_decay(Position /*position*/) const override { return weight_decay_; }

 private:
  double learning_rate_;
  std::optional<double> weight_decay_;
};

struct LearningRateSchedulerOptions {
  double learning_rate = 1e-3;
  double end_learning_rate = 0;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 1;
  double power = 1;
  bool use_cosine = true;
  std::optional<double> weight_decay = {};  ///< constant; unset: each group keeps its own
};

/// `learning_rate_scheduler_kwargs`. With s updates applied: s < warmup_steps: lr s / warmup_steps;
/// then with r = min(s, decay_steps) / decay_steps: end + (lr - end) (1 + cos(pi r)) / 2, or
/// without cosine end + (lr - end) (1 - r)^power. The decay counts from 0, so there is a jump at
/// the end of the warm-up. ValueError, naming the key, for a value outside its range.
class LearningRateScheduler final : public Schedule {
 public:
  explicit LearningRateScheduler(LearningRateSchedulerOptions options);
  double learning_rate(Position position) const override;
  std::optional<double> weight_decay(Position /*position*/) const override {
    return options_.weight_decay;
  }

 private:
  LearningRateSchedulerOptions options_;
};

}  // namespace tapestry::optim

#include "optim/lr_scheduler.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "autograd/tensor/error.h"

namespace tapestry::optim {

namespace {

double half_cosine(double ratio) { return 0.5 * (std::cos(std::numbers::pi * ratio) + 1.0); }

}  // namespace

void Schedule::apply(Optimizer& optimizer, Position position) const {
  const double lr = learning_rate(position);
  const std::optional<double> wd = weight_decay(position);
  for (ParamGroup& group : optimizer.param_groups()) {
    if (!group.keeps_lr) {
      group.lr = lr * group.lr_mult;
    }
    if (wd && !group.keeps_weight_decay) {
      group.weight_decay = *wd * group.wd_mult;
    }
  }
}

LearningRateScheduler::LearningRateScheduler(LearningRateSchedulerOptions options)
    : options_(options) {
  check<ValueError>(options.learning_rate > 0, "learning_rate must be above 0, got ",
                    options.learning_rate);
  check<ValueError>(options.end_learning_rate >= 0, "end_learning_rate must not be negative, got ",
                    options.end_learning_rate);
  check<ValueError>(options.warmup_steps >= 0, "warmup_steps must not be negative, got ",
                    options.warmup_steps);
  check<ValueError>(options.decay_steps > 0, "decay_steps must be above 0, got ",
                    options.decay_steps);
  check<ValueError>(options.power > 0, "power must be above 0, got ", options.power);
  check<ValueError>(options.weight_decay.value_or(0) >= 0,
                    "weight_decay must not be negative, got ", options.weight_decay.value_or(0));
}

double LearningRateScheduler::learning_rate(Position position) const {
  const auto& o = options_;
  const int64_t s = position.applied;
  if (s < o.warmup_steps) {
    return o.learning_rate * static_cast<double>(s) / static_cast<double>(o.warmup_steps);
  }
  const double ratio =
      static_cast<double>(std::min(s, o.decay_steps)) / static_cast<double>(o.decay_steps);
  const double factor = o.use_cosine ? half_cosine(ratio) : std::pow(1.0 - ratio, o.power);
  return o.end_learning_rate + (o.learning_rate - o.end_learning_rate) * factor;
}

}  // namespace tapestry::optim

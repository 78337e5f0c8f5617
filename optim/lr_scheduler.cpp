#include "optim/lr_scheduler.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry::optim {

namespace {

double half_cosine(double ratio) { return 0.5 * (std::cos(std::numbers::pi * ratio) + 1.0); }

}  // namespace

void Schedule::apply(Optimizer& optimizer, Position position) const {
  const double lr = learning_rate(position);
  const double wd = weight_decay(position);
  for (ParamGroup& group : optimizer.param_groups()) {
    group.lr = lr * group.lr_mult;
    group.weight_decay = wd * group.wd_mult;
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
  check<ValueError>(options.weight_decay >= 0, "weight_decay must not be negative, got ",
                    options.weight_decay);
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

OptimizerParamScheduler::OptimizerParamScheduler(OptimizerParamSchedulerOptions options)
    : options_(std::move(options)) {
  const auto& o = options_;
  const auto batch = static_cast<double>(o.global_batch_size);
  check<ValueError>(o.global_batch_size > 0, "the global batch size must be above 0, got ",
                    o.global_batch_size);
  check<ValueError>(o.training_iters > 0 || o.train_samples > 0,
                    "training_iters or train_samples must be above 0, got ", o.training_iters,
                    " and ", o.train_samples);
  const auto samples = [&](const std::optional<int64_t>& count, double unit) {
    return count ? std::optional(static_cast<double>(*count) * unit) : std::nullopt;
  };
  if (o.training_iters > 0) {
    incr_ = static_cast<double>(o.training_iters) * batch;
    decay_ = samples(o.lr_decay_iters, batch).value_or(incr_);
    wsd_ = samples(o.lr_wsd_decay_iters, batch);
    warmup_ = static_cast<double>(o.lr_warmup_iters) * batch;
  } else {
    incr_ = static_cast<double>(o.train_samples);
    decay_ = samples(o.lr_decay_samples, 1).value_or(incr_);
    wsd_ = samples(o.lr_wsd_decay_samples, 1);
    warmup_ = static_cast<double>(o.lr_warmup_samples);
  }
  if (o.lr_warmup_fraction) {
    check<ValueError>(*o.lr_warmup_fraction >= 0 && *o.lr_warmup_fraction < 1,
                      "lr_warmup_fraction must lie in [0, 1), got ", *o.lr_warmup_fraction);
    warmup_ = *o.lr_warmup_fraction * decay_;
  }
  start_wd_ = o.start_weight_decay.value_or(o.weight_decay);
  end_wd_ = o.end_weight_decay.value_or(o.weight_decay);

  check<ValueError>(o.min_lr >= 0, "min_lr must not be negative, got ", o.min_lr);
  check<ValueError>(o.min_lr <= o.learning_rate, "min_lr ", o.min_lr, " is above learning_rate ",
                    o.learning_rate);
  check<ValueError>(o.lr_warmup_init >= 0 && o.lr_warmup_init <= o.learning_rate, "lr_warmup_init ",
                    o.lr_warmup_init, " must lie between 0 and learning_rate ", o.learning_rate);
  check<ValueError>(decay_ > 0, "lr_decay_iters or lr_decay_samples must be above 0, got ", decay_,
                    " samples");
  check<ValueError>(warmup_ >= 0 && warmup_ < decay_, "lr_warmup_iters or lr_warmup_samples (",
                    warmup_, " samples) must be below the length of the decay (", decay_,
                    " samples)");
  const auto one_of = [](const char* key, const std::string& value,
                         std::initializer_list<const char*> known) {
    std::string list;
    bool found = false;
    for (const char* name : known) {
      found = found || value == name;
      list += (list.empty() ? "" : ", ") + std::string(name);
    }
    check<ValueError>(found, key, " '", value, "' is not known; choose one of ", list);
  };
  one_of("lr_decay_style", o.lr_decay_style,
         {"constant", "linear", "cosine", "inverse-square-root", "WSD"});
  if (o.lr_decay_style == "WSD") {
    one_of("lr_wsd_decay_style", o.lr_wsd_decay_style, {"linear", "cosine", "exponential"});
    check<ValueError>(wsd_.has_value(),
                      "lr_wsd_decay_iters (or lr_wsd_decay_samples) is needed with lr_decay_style "
                      "WSD");
    check<ValueError>(*wsd_ >= 0, "lr_wsd_decay_iters must not be negative, got ", *wsd_,
                      " samples");
  }
  one_of("weight_decay_incr_style", o.weight_decay_incr_style, {"constant", "linear", "cosine"});
  check<ValueError>(start_wd_ >= 0, "start_weight_decay must not be negative, got ", start_wd_);
  check<ValueError>(end_wd_ >= start_wd_, "end_weight_decay ", end_wd_,
                    " is below start_weight_decay ", start_wd_);
  check<ValueError>(o.weight_decay_incr_style != "constant" || start_wd_ == end_wd_,
                    "weight_decay_incr_style constant needs equal start_weight_decay (", start_wd_,
                    ") and end_weight_decay (", end_wd_, ")");
}

// Of doubles: what a damaged file says of both need not fit into 64 bits.
double OptimizerParamScheduler::samples_seen(Position position) const {
  return static_cast<double>(position.seen - position.skipped) *
         static_cast<double>(options_.global_batch_size);
}

double OptimizerParamScheduler::learning_rate(Position position) const {
  const auto& o = options_;
  const double n = samples_seen(position);
  if (warmup_ > 0 && n <= warmup_) {
    return o.lr_warmup_init + (o.learning_rate - o.lr_warmup_init) * n / warmup_;
  }
  if (o.lr_decay_style == "constant") {
    return o.learning_rate;
  }
  if (n > decay_) {
    return o.min_lr;
  }
  if (o.lr_decay_style == "inverse-square-root") {
    return std::max(o.min_lr, o.learning_rate * std::sqrt(std::max(warmup_, 1.0)) /
                                  std::sqrt(std::max(n, 1.0)));
  }
  const double ratio = (n - warmup_) / (decay_ - warmup_);
  double factor = 1;
  if (o.lr_decay_style == "linear") {
    factor = 1.0 - ratio;
  } else if (o.lr_decay_style == "cosine") {
    factor = half_cosine(ratio);
  } else if (n > decay_ - *wsd_) {
    const double q = (n - (decay_ - *wsd_)) / *wsd_;
    factor = o.lr_wsd_decay_style == "linear"   ? 1.0 - q
             : o.lr_wsd_decay_style == "cosine" ? half_cosine(q)
                                                : 2.0 * std::pow(0.5, q) - 1.0;
  }
  return o.min_lr + factor * (o.learning_rate - o.min_lr);
}

double OptimizerParamScheduler::weight_decay(Position position) const {
  const double n = samples_seen(position);
  if (n > incr_ || options_.weight_decay_incr_style == "constant") {
    return end_wd_;
  }
  const double ratio = n / incr_;
  const double factor =
      options_.weight_decay_incr_style == "linear" ? ratio : half_cosine(1.0 - ratio);
  return start_wd_ + factor * (end_wd_ - start_wd_);
}

}  // namespace tapestry::optim

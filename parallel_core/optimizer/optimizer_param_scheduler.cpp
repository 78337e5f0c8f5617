#include "parallel_core/optimizer/optimizer_param_scheduler.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

namespace curve = optim::curve;
using SchedulerOptions = OptimizerParamSchedulerOptions;

// All in samples; a fraction of the decay is not rounded.
struct ScheduleLengths {
  double warmup = 0;
  double decay = 0;
  std::optional<double> wsd;
  double incr = 0;
  double keep = 0;
  double last = 0;  // at min_lr, before final_lr
  double restart = 0;
};

ScheduleLengths lengths_of(const SchedulerOptions& o) {
  ScheduleLengths l;
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
    l.incr = static_cast<double>(o.training_iters) * batch;
    l.decay = samples(o.lr_decay_iters, batch).value_or(l.incr);
    l.wsd = samples(o.lr_wsd_decay_iters, batch);
    l.warmup = static_cast<double>(o.lr_warmup_iters) * batch;
  } else {
    l.incr = static_cast<double>(o.train_samples);
    l.decay = samples(o.lr_decay_samples, 1).value_or(l.incr);
    l.wsd = samples(o.lr_wsd_decay_samples, 1);
    l.warmup = static_cast<double>(o.lr_warmup_samples);
  }
  l.keep = static_cast<double>(o.lr_keep_iters) * batch;
  l.last = static_cast<double>(o.lr_final_iters) * batch;
  l.restart = static_cast<double>(o.lr_restart_iters) * batch;
  if (o.lr_warmup_fraction) {
    check<ValueError>(*o.lr_warmup_fraction >= 0 && *o.lr_warmup_fraction < 1,
                      "lr_warmup_fraction must lie in [0, 1), got ", *o.lr_warmup_fraction);
    l.warmup = *o.lr_warmup_fraction * l.decay;
  }
  return l;
}

double start_decay(const SchedulerOptions& o) {
  return o.start_weight_decay.value_or(o.weight_decay.value_or(0));
}
double end_decay(const SchedulerOptions& o) {
  return o.end_weight_decay.value_or(o.weight_decay.value_or(0));
}

// What only some styles read.
void check_style(const SchedulerOptions& o, const ScheduleLengths& l) {
  check<ValueError>(o.lr_num_cycles.value_or(1) > 0, "lr_num_cycles must be above 0, got ",
                    o.lr_num_cycles.value_or(1));
  check<ValueError>(o.lr_decay_power > 0, "lr_decay_power must be above 0, got ", o.lr_decay_power);
  check<ValueError>(o.lr_keep_iters >= 0, "lr_keep_iters must not be negative, got ",
                    o.lr_keep_iters);
  check<ValueError>(o.lr_final_iters >= 0, "lr_final_iters must not be negative, got ",
                    o.lr_final_iters);
  check<ValueError>(o.final_lr.value_or(0) >= 0, "final_lr must not be negative, got ",
                    o.final_lr.value_or(0));
  check<ValueError>(o.lr_restart_mult >= 1, "lr_restart_mult must be 1 or more, got ",
                    o.lr_restart_mult);
  if (o.lr_decay_style == "cooldown") {
    check<ValueError>(l.warmup + l.keep < l.decay, "lr_keep_iters (", l.keep, " samples) and the ",
                      "warm-up (", l.warmup, " samples) must be below the length of the decay (",
                      l.decay, " samples)");
  }
  if (o.lr_decay_style == "warm_restarts") {
    check<ValueError>(o.lr_restart_iters > 0, "lr_restart_iters must be above 0 with ",
                      "lr_decay_style warm_restarts, got ", o.lr_restart_iters);
  }
}

void check_options(const SchedulerOptions& o, const ScheduleLengths& l) {
  const double start_wd = start_decay(o);
  const double end_wd = end_decay(o);

  check<ValueError>(o.min_lr >= 0, "min_lr must not be negative, got ", o.min_lr);
  check<ValueError>(o.min_lr <= o.learning_rate, "min_lr ", o.min_lr, " is above learning_rate ",
                    o.learning_rate);
  const double init = o.lr_warmup_init.value_or(0);
  check<ValueError>(init >= 0 && init <= o.learning_rate, "lr_warmup_init ", init,
                    " must lie between 0 and learning_rate ", o.learning_rate);
  check<ValueError>(l.decay > 0, "lr_decay_iters or lr_decay_samples must be above 0, got ",
                    l.decay, " samples");
  check<ValueError>(l.warmup >= 0 && l.warmup < l.decay, "lr_warmup_iters or lr_warmup_samples (",
                    l.warmup, " samples) must be below the length of the decay (", l.decay,
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
         {"constant", "linear", "cosine", "inverse-square-root", "WSD", "polynomial",
          "cosine_restarts", "cooldown", "cosine_annealing", "warm_restarts"});
  check_style(o, l);
  if (o.lr_decay_style == "WSD") {
    one_of("lr_wsd_decay_style", o.lr_wsd_decay_style, {"linear", "cosine", "exponential"});
    check<ValueError>(l.wsd.has_value(),
                      "lr_wsd_decay_iters (or lr_wsd_decay_samples) is needed with lr_decay_style "
                      "WSD");
    check<ValueError>(*l.wsd >= 0, "lr_wsd_decay_iters must not be negative, got ", *l.wsd,
                      " samples");
  }
  one_of("weight_decay_incr_style", o.weight_decay_incr_style, {"constant", "linear", "cosine"});
  check<ValueError>(start_wd >= 0, "start_weight_decay must not be negative, got ", start_wd);
  check<ValueError>(end_wd >= start_wd, "end_weight_decay ", end_wd,
                    " is below start_weight_decay ", start_wd);
  check<ValueError>(o.weight_decay_incr_style != "constant" || start_wd == end_wd,
                    "weight_decay_incr_style constant needs equal start_weight_decay (", start_wd,
                    ") and end_weight_decay (", end_wd, ")");
}

double next_after(double x) { return std::nextafter(x, std::numeric_limits<double>::max()); }

// Up to and with `length`, then `last`.
optim::Curve up_to(double length, optim::Curve inside, double last) {
  return curve::join(std::move(inside), next_after(length), curve::constant(last));
}

// The cosine, and then min_lr for a while.
optim::Curve cooldown_curve(const SchedulerOptions& o, const ScheduleLengths& l) {
  const double falling = l.decay - l.warmup - l.keep;
  const double final_lr = o.final_lr.value_or(o.min_lr);
  optim::Curve fall =
      curve::cosine_waves(o.learning_rate, o.min_lr, falling, o.lr_num_cycles.value_or(0.5));
  optim::Curve end = curve::join(curve::constant(o.min_lr), l.last, curve::constant(final_lr));
  return curve::join(curve::constant(o.learning_rate), l.keep,
                     curve::join(std::move(fall), falling, std::move(end)));
}

// Of the styles that are one curve.
optim::Curve whole_curve(const SchedulerOptions& o, const ScheduleLengths& l) {
  const double length = l.decay - l.warmup;
  const std::string& style = o.lr_decay_style;
  if (style == "constant") {
    return curve::constant(o.learning_rate);
  }
  if (style == "linear") {
    return curve::linear(o.learning_rate, o.min_lr, length);
  }
  if (style == "cosine") {
    return curve::cosine_waves(o.learning_rate, o.min_lr, length, o.lr_num_cycles.value_or(0.5));
  }
  if (style == "polynomial") {
    return curve::polynomial(o.learning_rate, o.min_lr, length, o.lr_decay_power);
  }
  if (style == "cosine_restarts") {
    return curve::cosine_restarts(o.learning_rate, o.min_lr, length, o.lr_num_cycles.value_or(1));
  }
  if (style == "cosine_annealing") {
    return curve::cosine_annealing(o.learning_rate, o.min_lr, length);
  }
  if (style == "warm_restarts") {
    return curve::warm_restarts(o.learning_rate, o.min_lr, l.restart,
                                static_cast<double>(o.lr_restart_mult));
  }
  return style == "cooldown" ? cooldown_curve(o, l) : optim::Curve();
}

// From the end of the warm-up on, where position 0 is.
optim::Curve decay_curve(const SchedulerOptions& o, const ScheduleLengths& l) {
  const double length = l.decay - l.warmup;
  if (optim::Curve whole = whole_curve(o, l)) {
    return whole;
  }
  if (o.lr_decay_style == "inverse-square-root") {
    // What is before the first sample has its rate.
    const double before = std::max(l.warmup, 1.0);
    const auto falls = [=, falling = curve::inverse_square_root(o.learning_rate, before, o.min_lr),
                        warmup = l.warmup](double position) {
      return falling(std::max(position + warmup, 1.0) - before);
    };
    return up_to(length, falls, o.min_lr);
  }
  const double wsd = *l.wsd;
  if (wsd == 0) {
    return up_to(length, curve::constant(o.learning_rate), o.min_lr);
  }
  const auto end = o.lr_wsd_decay_style == "linear"   ? curve::linear
                   : o.lr_wsd_decay_style == "cosine" ? curve::cosine
                                                      : curve::exponential;
  const double stays = length - wsd;  // below 0 where the last part begins within the warm-up
  optim::Curve last = curve::shifted(end(o.learning_rate, o.min_lr, wsd), std::max(-stays, 0.0));
  return curve::join(curve::constant(o.learning_rate), std::max(stays, 0.0), std::move(last));
}

optim::Curve weight_decay_curve(const SchedulerOptions& o, const ScheduleLengths& l) {
  if (!o.weight_decay && !o.start_weight_decay && !o.end_weight_decay) {
    return {};
  }
  if (o.weight_decay_incr_style == "constant") {
    return curve::constant(end_decay(o));
  }
  return (o.weight_decay_incr_style == "linear" ? curve::linear : curve::cosine)(
      start_decay(o), end_decay(o), l.incr);
}

}  // namespace

OptimizerParamScheduler::OptimizerParamScheduler(const OptimizerParamSchedulerOptions& options)
    : global_batch_size_(options.global_batch_size), by_samples_(options.training_iters == 0) {
  const ScheduleLengths lengths = lengths_of(options);
  check_options(options, lengths);
  learning_rate_ = decay_curve(options, lengths);
  if (lengths.warmup > 0) {  // whose last sample has the largest rate, whatever follows
    optim::Curve rising =
        curve::linear(options.lr_warmup_init.value_or(0), options.learning_rate, lengths.warmup);
    if (!options.lr_warmup_init) {  // from 0, but a step ahead
      rising = curve::shifted(std::move(rising), static_cast<double>(options.global_batch_size));
    }
    // What follows counts from the warm-up's end itself: a cycle that is a step late would be seen.
    learning_rate_ = [rising, warmup = lengths.warmup,
                      rest = std::move(learning_rate_)](double position) {
      return position <= warmup ? rising(position) : rest(position - warmup);
    };
  }
  weight_decay_ = weight_decay_curve(options, lengths);
}

// Of doubles: what a damaged file says of both need not fit into 64 bits.
double OptimizerParamScheduler::samples_seen(Position position) const {
  if (by_samples_ && position.samples) {
    return static_cast<double>(*position.samples);
  }
  return static_cast<double>(position.seen - position.skipped) *
         static_cast<double>(global_batch_size_);
}

double OptimizerParamScheduler::learning_rate(Position position) const {
  return learning_rate_(samples_seen(position));
}

std::optional<double> OptimizerParamScheduler::weight_decay(Position position) const {
  return weight_decay_ ? std::optional(weight_decay_(samples_seen(position))) : std::nullopt;
}

}  // namespace tapestry

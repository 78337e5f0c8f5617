// Rules of the schedules of learning rate and weight decay. The errors are those of the original's
// OptimizerParamScheduler, found before any work.
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel_core/config/registered_names.h"
#include "parallel_core/config/resolve/resolve.h"
#include "parallel_core/config/schema/schema.h"

namespace tapestry::config {
namespace {

struct Schedule {
  double per_step = 1;  // what a step counts, of one data-parallel rank at least
  double decay = 0;     // all in steps, or all in sequences
  double warmup = 0;
  std::optional<int64_t> wsd;
  const char* warmup_key = "optimizer_config.lr_warmup_iters";
  const char* wsd_key = "optimizer_config.lr_wsd_decay_iters";
};

Schedule schedule_of(const AllConfig& config) {
  const auto& optimizer = config.optimizer_config;
  Schedule s;
  if (config.dataset_config.train_samples > 0) {
    s.decay = static_cast<double>(
        optimizer.lr_decay_samples.value_or(config.dataset_config.train_samples));
    s.warmup = static_cast<double>(optimizer.lr_warmup_samples);
    s.wsd = optimizer.lr_wsd_decay_samples;
    s.per_step = static_cast<double>(global_batch_size(config));
    s.warmup_key = "optimizer_config.lr_warmup_samples";
    s.wsd_key = "optimizer_config.lr_wsd_decay_samples";
  } else {
    s.decay = static_cast<double>(
        optimizer.lr_decay_iters.value_or(config.training_config.training_iters));
    s.warmup = static_cast<double>(optimizer.lr_warmup_iters);
    s.wsd = optimizer.lr_wsd_decay_iters;
  }
  if (optimizer.lr_warmup_fraction) {
    s.warmup = *optimizer.lr_warmup_fraction * s.decay;
    s.warmup_key = "optimizer_config.lr_warmup_fraction";
  }
  return s;
}

// Keys that count the other unit would have no effect.
void check_units(Resolution& r) {
  const bool samples = r.config().dataset_config.train_samples > 0;
  constexpr std::array<std::array<const char*, 2>, 3> kPairs = {{
      {"lr_decay_iters", "lr_decay_samples"},
      {"lr_wsd_decay_iters", "lr_wsd_decay_samples"},
      {"lr_warmup_iters", "lr_warmup_samples"},
  }};
  for (const auto& pair : kPairs) {
    const char* wrong = pair[samples ? 0 : 1];
    if (r.asked("optimizer_config", wrong)) {
      r.error(concat("optimizer_config.", wrong),
              concat("has no effect: the run is counted in ", samples ? "sequences" : "steps",
                     "; use ", pair[samples ? 1 : 0]));
    }
  }
}

// Keys that only some styles read.
void check_style_keys(Resolution& r, const std::string& style) {
  struct Reader {
    const char* key;
    std::vector<std::string_view> styles;
  };
  static const std::vector<Reader> all = {
      {"lr_num_cycles", {"cosine", "cosine_restarts", "cooldown"}},
      {"lr_decay_power", {"polynomial"}},
      {"lr_keep_iters", {"cooldown"}},
      {"lr_final_iters", {"cooldown"}},
      {"final_lr", {"cooldown"}},
      {"lr_restart_iters", {"warm_restarts"}},
      {"lr_restart_mult", {"warm_restarts"}},
  };
  for (const Reader& reader : all) {
    if (std::count(reader.styles.begin(), reader.styles.end(), style) == 0 &&
        differs_from_default(r.config(), "optimizer_config", reader.key)) {
      std::string styles;
      for (const std::string_view known : reader.styles) {
        styles += concat(styles.empty() ? "" : ", ", known);
      }
      r.error(concat("optimizer_config.", reader.key),
              concat("has no effect with lr_decay_style ", style, "; it belongs to ", styles));
    }
  }
}

void check_cycles(Resolution& r, const std::string& style, const Schedule& s) {
  const auto& optimizer = r.config().optimizer_config;
  if (style == "warm_restarts" && optimizer.lr_restart_iters == 0) {
    r.error("optimizer_config.lr_restart_iters", "is required by lr_decay_style warm_restarts");
  }
  if (style != "cooldown" || !r.sound({"optimizer_config.lr_keep_iters"})) {
    return;
  }
  const double keep = static_cast<double>(optimizer.lr_keep_iters) * s.per_step;
  if (s.warmup < s.decay && s.warmup + keep >= s.decay) {
    r.error("optimizer_config.lr_keep_iters",
            concat("is ", optimizer.lr_keep_iters, ": with the warm-up of ", s.warmup,
                   " nothing is left of the decay of ", s.decay,
                   " (lr_decay_iters or the length of the run)"));
  }
}

void check_decay(Resolution& r) {
  const auto& optimizer = r.config().optimizer_config;
  const std::string style = optimizer.lr_decay_style.value_or("constant");
  if (optimizer.min_lr > optimizer.learning_rate) {
    r.error("optimizer_config.min_lr",
            concat("is ", number_text(optimizer.min_lr), ", more than learning_rate ",
                   number_text(optimizer.learning_rate)));
  }
  if (optimizer.lr_warmup_init.value_or(0) > optimizer.learning_rate) {
    r.error("optimizer_config.lr_warmup_init",
            concat("is ", number_text(*optimizer.lr_warmup_init), ", more than learning_rate ",
                   number_text(optimizer.learning_rate)));
  }
  check_units(r);
  check_style_keys(r, style);
  if (optimizer.lr_warmup_fraction) {  // 0 is one, too
    for (const char* key : {"lr_warmup_iters", "lr_warmup_samples"}) {
      r.idle(concat("optimizer_config.", key), "beside lr_warmup_fraction");
    }
  }
  const Schedule s = schedule_of(r.config());
  if (s.decay <= 0) {
    if (r.config().training_config.epochs && style != "constant") {
      r.error("optimizer_config.lr_decay_iters",
              concat("is needed for lr_decay_style ", style,
                     ": with epochs alone the number of steps is not known here"));
    }
    return;  // otherwise training_iters has been reported
  }
  if (s.warmup >= s.decay) {
    r.error(s.warmup_key, concat("the warm-up of ", s.warmup, " must be shorter than the decay of ",
                                 s.decay, " (lr_decay_iters or the length of the run)"));
  }
  check_cycles(r, style, s);
  if (style == "WSD" && !s.wsd) {
    r.error(s.wsd_key, "is required by lr_decay_style WSD");
  } else if (style == "WSD" && static_cast<double>(*s.wsd) > s.decay) {
    r.error(s.wsd_key, concat("is ", *s.wsd, ", longer than the decay of ", s.decay));
  }
}

// A fraction goes before a number, but one of the file not before a number of the command line.
void resolve_overridden_warmup(Resolution& r) {
  constexpr const char* kFraction = "optimizer_config.lr_warmup_fraction";
  auto& fraction = r.config().optimizer_config.lr_warmup_fraction;
  for (const char* key :
       {"optimizer_config.lr_warmup_iters", "optimizer_config.lr_warmup_samples"}) {
    if (fraction && r.overridden(key) && !r.overridden(kFraction)) {
      fraction.reset();
      r.derived(kFraction, key);
    }
  }
}

// The name that the program has registered for lr_decay_style, if it is such a one.
bool has_own_schedule(const OptimizerConfig& optimizer) {
  return optimizer.lr_decay_style && !optimizer.learning_rate_scheduler_kwargs &&
         find_registered(ModuleType::kLrScheduler, *optimizer.lr_decay_style) != nullptr;
}

// With a schedule of another kind none of the lr_decay_style family's keys has an effect.
void check_single_family(Resolution& r) {
  const bool own = has_own_schedule(r.config().optimizer_config);
  constexpr const char* kOthers[] = {
      "lr_decay_style",       "lr_decay_iters",  "lr_decay_samples",  "lr_wsd_decay_iters",
      "lr_wsd_decay_samples", "lr_warmup_iters", "lr_warmup_samples", "lr_warmup_fraction",
      "lr_warmup_init",       "min_lr",          "lr_num_cycles",     "lr_decay_power",
      "lr_keep_iters",        "lr_final_iters",  "final_lr",          "lr_restart_iters",
      "lr_restart_mult"};
  for (const char* name : kOthers) {
    const bool names_own = own && std::string_view(name) == "lr_decay_style";
    const char* const other =
        own ? "optimizer_config.lr_decay_style" : "optimizer_config.learning_rate_scheduler_kwargs";
    if (!names_own && r.asked_beside(other, "optimizer_config", name)) {
      r.error(concat("optimizer_config.", name),
              own ? concat("has no effect with lr_decay_style ",
                           *r.config().optimizer_config.lr_decay_style,
                           ", which is the program's own; hand it over in lr_schedule_kwargs")
                  : std::string("belongs to another schedule than learning_rate_scheduler_kwargs; "
                                "keep one of them"));
    }
  }
}

void resolve_weight_decay(Resolution& r) {
  auto& optimizer = r.config().optimizer_config;
  constexpr const char* kStart = "optimizer_config.start_weight_decay";
  constexpr const char* kEnd = "optimizer_config.end_weight_decay";
  constexpr const char* kStyle = "optimizer_config.weight_decay_incr_style";
  if (!r.sound({"optimizer_config.weight_decay", kStart, kEnd, kStyle})) {
    return;
  }
  if (!optimizer.start_weight_decay) {
    optimizer.start_weight_decay = optimizer.weight_decay;
    r.derived(kStart, "optimizer_config.weight_decay");
  }
  if (!optimizer.end_weight_decay) {
    optimizer.end_weight_decay = optimizer.weight_decay;
    r.derived(kEnd, "optimizer_config.weight_decay");
  }
  const double start = *optimizer.start_weight_decay;
  const double end = *optimizer.end_weight_decay;
  const bool own = has_own_schedule(optimizer);
  if (optimizer.learning_rate_scheduler_kwargs || own) {
    for (const auto& [key, value] : {std::pair{kStart, start}, std::pair{kEnd, end}}) {
      if (value != optimizer.weight_decay) {
        r.error(key, concat("is ", number_text(value), ", but weight decay is constant (",
                            number_text(optimizer.weight_decay), ") with ",
                            own ? concat("lr_decay_style ", *optimizer.lr_decay_style)
                                : std::string("learning_rate_scheduler_kwargs")));
      }
    }
  } else if (end < start) {
    r.error(kEnd, concat("end_weight_decay is ", number_text(end),
                         ", less than start_weight_decay ", number_text(start)));
  } else if (optimizer.weight_decay_incr_style == "constant" && start != end) {
    r.error(kStyle, concat("is constant, but weight decay goes from ", number_text(start), " to ",
                           number_text(end), "; choose linear or cosine"));
  }
}

// Rules for what is not there.
void check_decay_rules(Resolution& r) {
  const auto& optimizer = r.config().optimizer_config;
  if (optimizer.start_weight_decay.value_or(0) > 0 || optimizer.end_weight_decay.value_or(0) > 0 ||
      !r.sound({"optimizer_config.weight_decay", "optimizer_config.start_weight_decay",
                "optimizer_config.end_weight_decay"})) {
    return;
  }
  for (const char* key : {"weight_decay_include", "weight_decay_exclude"}) {
    r.idle(concat("optimizer_config.", key), "with weight_decay 0");
  }
}

}  // namespace

void resolve_schedule(Resolution& r) {
  auto& optimizer = r.config().optimizer_config;
  resolve_weight_decay(r);
  check_decay_rules(r);
  if (!r.sound({"optimizer_config.learning_rate_scheduler_kwargs"})) {
    return;
  }
  if (!r.sound({"optimizer_config.lr_decay_style"})) {
    return;
  }
  if (optimizer.learning_rate_scheduler_kwargs || has_own_schedule(optimizer)) {
    check_single_family(r);
    return;
  }
  if (!r.sound({"optimizer_config.learning_rate", "optimizer_config.min_lr",
                "optimizer_config.lr_warmup_init", "optimizer_config.lr_warmup_iters",
                "optimizer_config.lr_warmup_samples", "optimizer_config.lr_warmup_fraction",
                "optimizer_config.lr_decay_iters", "optimizer_config.lr_decay_samples",
                "optimizer_config.lr_wsd_decay_iters", "optimizer_config.lr_wsd_decay_samples",
                "training_config.training_iters", "dataset_config.train_samples"})) {
    return;
  }
  resolve_overridden_warmup(r);
  check_decay(r);
  if (!optimizer.lr_decay_style) {
    optimizer.lr_decay_style = "constant";
    r.derived("optimizer_config.lr_decay_style", "absent learning_rate_scheduler_kwargs");
  }
}

}  // namespace tapestry::config

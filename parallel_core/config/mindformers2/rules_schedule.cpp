// Rules of `lr_scheduler`: the classes of MindFormers as styles of the schedule.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "autograd/tensor/error.h"
#include "parallel_core/config/mindformers2/reading.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/yaml/value.h"

namespace tapestry::config::mindformers2 {
namespace {

constexpr std::string_view kWarmupKeys = "warmup_steps|warmup_ratio|warmup_lr_init|learning_rate";

// A class and the keys that it takes beside those of a warm-up.
struct ScheduleClass {
  std::string_view type;
  std::string_view style;
  std::string_view keys;
  bool warms_up = true;
};

constexpr ScheduleClass kClasses[] = {
    {"ConstantWarmUpLR", "constant", ""},
    {"LinearWithWarmUpLR", "linear", ""},
    {"CosineWithWarmUpLR", "cosine", "num_cycles|lr_end|decay_steps|decay_ratio"},
    {"CosineWithRestartsAndWarmUpLR", "cosine_restarts",
     "num_cycles|lr_end|decay_steps|decay_ratio"},
    {"PolynomialWithWarmUpLR", "polynomial", "lr_end|power|decay_steps|decay_ratio"},
    {"WarmUpStableDecayLR", "WSD", "lr_end|decay_start_steps|decay_start_ratio"},
    {"ConstantWithCoolDownLR", "cooldown",
     "keep_steps|decay_steps|decay_ratio|num_cycles|lr_end1|final_steps|lr_end2"},
    {"CosineAnnealingLR", "cosine_annealing", "base_lr|t_max|eta_min", false},
    {"CosineAnnealingWarmRestarts", "warm_restarts", "base_lr|t_0|t_mult|eta_min", false}};

std::string path_of_key(std::string_view key) { return concat("lr_scheduler.", key); }

// Steps that one key gives, or another as a share of the run; empty: neither.
std::optional<int64_t> steps_of(Reading& r, std::string_view steps, std::string_view ratio) {
  const std::string by_steps = path_of_key(steps);
  const std::string by_ratio = path_of_key(ratio);
  const bool has_ratio = r.given(by_ratio) && !r.is_null(by_ratio);
  if (has_ratio) {
    const double share = r.number(by_ratio);
    if (share < 0 || share > 1) {
      r.error(by_ratio, concat("is ", r.text(by_ratio), ", expected a number from 0 to 1"));
      return std::nullopt;
    }
    return static_cast<int64_t>(share * static_cast<double>(r.integer("training.steps")));
  }
  if (r.given(by_steps) && !r.is_null(by_steps)) {
    return r.integer(by_steps);
  }
  return std::nullopt;
}

std::string written_of(Reading& r, std::string_view steps, std::string_view ratio) {
  const std::string by_ratio = path_of_key(ratio);
  return r.given(by_ratio) && !r.is_null(by_ratio) ? by_ratio : path_of_key(steps);
}

void put_key(Reading& r, std::string_view key, std::string_view here, std::string_view initial) {
  const std::string path = path_of_key(key);
  const bool given = r.given(path) && !r.is_null(path);
  if (given || !initial.empty()) {
    r.put(concat("optimizer_config.", here), given ? r.text(path) : std::string(initial), path);
  }
}

void translate_warmup(Reading& r) {
  const int64_t steps = steps_of(r, "warmup_steps", "warmup_ratio").value_or(0);
  if (steps == 0) {
    return;
  }
  r.put("optimizer_config.lr_warmup_iters", concat(steps),
        written_of(r, "warmup_steps", "warmup_ratio"));
  put_key(r, "warmup_lr_init", "lr_warmup_init", "0.0");
}

void translate_decay_steps(Reading& r) {
  if (const auto steps = steps_of(r, "decay_steps", "decay_ratio")) {
    r.put("optimizer_config.lr_decay_iters", concat(*steps),
          written_of(r, "decay_steps", "decay_ratio"));
  }
}

void translate_stable(Reading& r) {
  const auto start = steps_of(r, "decay_start_steps", "decay_start_ratio");
  const std::string path = written_of(r, "decay_start_steps", "decay_start_ratio");
  const int64_t steps = r.integer("training.steps");
  if (!start) {
    r.error("lr_scheduler.type",
            "WarmUpStableDecayLR needs decay_start_steps or decay_start_ratio");
  } else if (*start >= steps) {
    r.error(path, concat("the decay begins at step ", *start, ", and the run has ", steps,
                         "; let it begin earlier"));
  } else {
    r.put("optimizer_config.lr_wsd_decay_iters", concat(steps - *start), path);
    r.put("optimizer_config.lr_wsd_decay_style", "linear", "lr_scheduler.type");
    put_key(r, "lr_end", "min_lr", "1e-7");
  }
}

void translate_shape(Reading& r, std::string_view style) {
  if (style == "cosine" || style == "cosine_restarts") {
    put_key(r, "lr_end", "min_lr", "0.0");
    const bool usual = style == "cosine" && (!r.given("lr_scheduler.num_cycles") ||
                                             r.number("lr_scheduler.num_cycles") == 0.5);
    put_key(r, "num_cycles", "lr_num_cycles", usual ? "" : "1.0");
    translate_decay_steps(r);
  } else if (style == "polynomial") {
    put_key(r, "lr_end", "min_lr", "1e-7");
    put_key(r, "power", "lr_decay_power", "1.0");
    translate_decay_steps(r);
  } else if (style == "WSD") {
    translate_stable(r);
  } else if (style == "cooldown") {
    put_key(r, "keep_steps", "lr_keep_iters", "0");
    put_key(r, "lr_end1", "min_lr", "0.0");
    put_key(r, "final_steps", "lr_final_iters", "0");
    put_key(r, "lr_end2", "final_lr", "");
    if (const auto steps = steps_of(r, "decay_steps", "decay_ratio")) {
      const int64_t before = steps_of(r, "warmup_steps", "warmup_ratio").value_or(0) +
                             r.integer("lr_scheduler.keep_steps");
      r.put("optimizer_config.lr_decay_iters", concat(before + *steps),
            written_of(r, "decay_steps", "decay_ratio"));
    }
    if (r.given("lr_scheduler.num_cycles") && r.number("lr_scheduler.num_cycles") != 0.5) {
      put_key(r, "num_cycles", "lr_num_cycles", "");
    }
  } else if (style == "cosine_annealing" || style == "warm_restarts") {
    put_key(r, "eta_min", "min_lr", "0.0");
    if (style == "cosine_annealing") {
      put_key(r, "t_max", "lr_decay_iters", "");
    } else {
      put_key(r, "t_0", "lr_restart_iters", "");
      put_key(r, "t_mult", "lr_restart_mult", "1");
    }
  }
}

bool takes(const ScheduleClass& chosen, std::string_view key) {
  for (const std::string_view keys :
       {chosen.keys, chosen.warms_up ? kWarmupKeys : std::string_view("learning_rate"),
        std::string_view("type|total_steps")}) {
    const auto list = split_text(keys, '|');
    if (std::find(list.begin(), list.end(), key) != list.end()) {
      return true;
    }
  }
  return false;
}

}  // namespace

void translate_schedule(Reading& r) {
  const std::string type = r.text("lr_scheduler.type");
  const auto* const chosen =
      std::find_if(std::begin(kClasses), std::end(kClasses),
                   [&](const ScheduleClass& one) { return one.type == type; });
  if (chosen == std::end(kClasses)) {
    if (!r.given("lr_scheduler.type") && r.errors.empty()) {
      r.error("lr_scheduler.type",
              "is needed, as MindFormers builds no schedule without it; ConstantWarmUpLR keeps the "
              "rate");
    }
    return;
  }
  for (const std::string& path : r.given_below("lr_scheduler")) {
    const std::string key = path.substr(path.find('.') + 1);
    if (!takes(*chosen, key)) {
      r.error(path, concat("is no key of ", type, "; leave it out"));
    }
  }
  if (std::string_view(chosen->style) != "constant") {
    r.put("optimizer_config.lr_decay_style", std::string(chosen->style), "lr_scheduler.type");
  }
  const bool by_base = r.given("lr_scheduler.base_lr");
  put_key(r, by_base ? "base_lr" : "learning_rate", "learning_rate", "1e-5");
  if (chosen->warms_up) {
    translate_warmup(r);
  }
  translate_shape(r, chosen->style);
}

}  // namespace tapestry::config::mindformers2

// Rules of the optimizer: which keys its type reads, and what it cannot stand beside.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "parallel_core/config/resolve/resolve.h"
#include "parallel_core/config/schema/schema.h"

namespace tapestry::config {
namespace {

// What an update in the middle of the backward pass cannot have seen yet.
void check_optimizer_in_backward(Resolution& r) {
  constexpr const char* kKey = "optimizer_config.optimizer_in_backward";
  const auto& config = r.config();
  if (!config.optimizer_config.optimizer_in_backward) {
    return;
  }
  if (config.dataset_config.micro_batch_num != 1 && r.sound({"dataset_config.micro_batch_num"})) {
    r.error(kKey, concat("needs micro_batch_num: 1, it is ", config.dataset_config.micro_batch_num,
                         ": gradients of several micro-batches must be added up before the "
                         "update"));
  }
  const std::optional<GradClipConfig> clip = gradient_clipping(config);
  if (clip && clip->grad_clip_type != "GradClipByValue") {
    r.error(kKey,
            "cannot stand beside clipping by norm, which needs all gradients before the first "
            "update; use GradClipByValue or none");
  }
  if (config.model_config.compute_dtype == kFloat16) {
    r.error(kKey,
            "cannot stand beside float16: a step that overflows could not be skipped any more");
  }
  if (!config.training_config.dump_grad_steps.empty()) {
    r.error(kKey,
            "cannot stand beside training_config.dump_grad_steps: the gradients never exist "
            "together");
  }
  if (config.optimizer_config.main_grads_dtype != kFloat32) {
    r.error("optimizer_config.main_grads_dtype",
            "has no effect with optimizer_in_backward: gradients are not accumulated");
  }
}

void check_param_remainders(Resolution& r) {
  if (r.config().optimizer_config.store_param_remainders &&
      r.config().model_config.compute_dtype != kBFloat16) {
    r.error("optimizer_config.store_param_remainders",
            concat("needs compute_dtype bfloat16 (training_config.bf16: True), it is ",
                   name_of(r.config().model_config.compute_dtype)));
  }
}

// Which optimizers read a key.
struct Effect {
  const char* key;
  std::vector<std::string_view> types;
};
const std::vector<Effect>& effects() {
  static const std::vector<Effect> all = {
      {"betas", {"AdamW", "Adam", "Lion", "Came", "Muon"}},
      {"eps", {"AdamW", "Adam", "Muon"}},
      {"exp_avg_dtype", {"AdamW", "Adam", "Lion", "Muon"}},
      {"exp_avg_sq_dtype", {"AdamW", "Adam", "Muon"}},
      {"store_param_remainders", {"AdamW", "Adam"}},
      {"momentum", {"SGD", "Adafactor", "Muon"}},
      {"dampening", {"SGD"}},
      {"nesterov", {"SGD", "Muon"}},
      {"beta3", {"Came"}},
      {"decay_rate", {"Came", "Adafactor"}},
      {"clip_threshold", {"Came", "Adafactor"}},
      {"scale_parameter", {"Came", "Adafactor"}},
      {"eps1", {"Came", "Adafactor"}},
      {"eps2", {"Came", "Adafactor"}},
      {"eps3", {"Came"}},
      {"ns_steps", {"Muon"}},
      {"ns_coefficients", {"Muon"}},
      {"adamw_include", {"Muon"}},
      {"ns_dtype", {"Muon"}},
      {"adjust_lr", {"Muon"}},
      {"matched_adamw_rms", {"Muon"}},
      {"adamw_learning_rate", {"Muon"}},
  };
  return all;
}

void check_effects(Resolution& r) {
  const std::string& type = r.config().optimizer_config.optimizer_type;
  for (const Effect& effect : effects()) {
    const std::string key = concat("optimizer_config.", effect.key);
    if (std::count(effect.types.begin(), effect.types.end(), type) > 0 ||
        !differs_from_default(r.config(), "optimizer_config", effect.key)) {
      continue;
    }
    // A file of AdamW is often tried with another optimizer.
    const std::string_view name = effect.key;
    if (name == "betas" || name == "eps") {
      r.idle(key, concat("with optimizer_type ", type));
    } else {
      r.error(key, concat("has no effect with optimizer_type ", type, "; leave it out"));
    }
  }
}

// Rows that have their own numbers of iterations.
void check_coefficients(Resolution& r) {
  const auto& coefficients = r.config().optimizer_config.ns_coefficients;
  if (r.sound({"optimizer_config.ns_coefficients"}) && coefficients && !coefficients->empty() &&
      coefficients->front().size() == 4) {
    r.idle("optimizer_config.ns_steps", "beside ns_coefficients with iterations of their own");
  }
}

// Defaults that are not those of the table.
void set_defaults_of_type(Resolution& r) {
  if (!r.sound({"optimizer_config.optimizer_type"})) {
    return;
  }
  OptimizerConfig& optimizer = r.config().optimizer_config;
  const std::string type = concat("optimizer_type ", optimizer.optimizer_type);
  const auto set = [&](const char* key, auto& member, const auto& value) {
    const std::string path = concat("optimizer_config.", key);
    if (!r.given(path)) {
      member = value;
      r.derived(path, type);
    }
  };
  if (optimizer.optimizer_type == "Lion") {
    set("betas", optimizer.betas, std::vector{0.9, 0.99});
  } else if (optimizer.optimizer_type == "Muon") {
    set("betas", optimizer.betas, std::vector{0.95, 0.95});
    set("momentum", optimizer.momentum, 0.95);
    set("nesterov", optimizer.nesterov, true);
  }
}

}  // namespace

void resolve_optimizer(Resolution& r) {
  auto& optimizer = r.config().optimizer_config;
  constexpr const char* kBetas = "optimizer_config.betas";
  set_defaults_of_type(r);
  const auto beta = [&](const char* key, const std::optional<double>& value, size_t index) {
    if (!value || !r.sound({key, kBetas}) || optimizer.betas[index] == *value) {
      return;
    }
    if (r.given(kBetas)) {
      r.error(key, concat("is ", number_text(*value), ", but betas has ",
                          number_text(optimizer.betas[index])));
      return;
    }
    optimizer.betas[index] = *value;
  };
  beta("optimizer_config.beta1", optimizer.beta1, 0);
  beta("optimizer_config.beta2", optimizer.beta2, 1);
  if (!r.given(kBetas) && (optimizer.beta1 || optimizer.beta2)) {
    r.derived(kBetas, "beta1 and beta2");
  }
  check_optimizer_in_backward(r);
  check_param_remainders(r);
  if (!r.sound({"optimizer_config.optimizer_type"})) {
    return;
  }
  check_effects(r);
  check_coefficients(r);
  const bool sgd = optimizer.optimizer_type == "SGD";
  if (sgd && optimizer.nesterov && (optimizer.momentum == 0 || optimizer.dampening != 0)) {
    r.error("optimizer_config.nesterov", "needs momentum > 0 and dampening 0");
  }
  if (optimizer.optimizer_type == "Adafactor" && !optimizer.decay_rate) {
    r.error("optimizer_config.decay_rate", "is needed with optimizer_type Adafactor");
  }
  if (optimizer.optimizer_type == "Came" && r.sound({kBetas}) && optimizer.betas[0] == 0) {
    r.error(kBetas,
            "the first must be above 0 with optimizer_type Came: it divides by how far an "
            "update is from the average");
  }
  if (optimizer.use_checkpoint_opt_param_scheduler && optimizer.override_opt_param_scheduler) {
    r.error("optimizer_config.override_opt_param_scheduler",
            "and use_checkpoint_opt_param_scheduler cannot both be True; the latter is so by "
            "default");
  }
}

}  // namespace tapestry::config

// What post_training_config means together with other sections.
#include <algorithm>
#include <string>
#include <string_view>

#include "autograd/tensor/error.h"
#include "parallel_core/config/resolve/resolve.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/yaml/value.h"

namespace tapestry::config {

namespace {

constexpr const char* kTask = "post_training_config.task";

std::string post_key(std::string_view name) { return concat("post_training_config.", name); }

// Which tasks know a key that not all do.
struct TaskKeys {
  std::string_view tasks;
  std::string_view keys;
};
constexpr TaskKeys kTaskKeys[] = {
    {"dpo|kto|grpo", "reference"},
    {"dpo|kto|orpo|cpo|reward|distil", "truncation_mode"},
    {"dpo|kto|cpo|grpo", "loss_type"},
    {"dpo",
     "loss_weights|f_divergence_type|f_alpha_divergence_coef|ld_alpha|use_weighting|discopop_tau"},
    {"dpo|cpo", "label_smoothing"},
    {"dpo|kto|orpo|cpo|distil|grpo", "beta"},
    {"kto", "desirable_weight|undesirable_weight"},
    {"cpo", "cpo_alpha|simpo_gamma|alpha"},
    {"reward", "center_rewards_coefficient"},
    {"distil", "teacher|teacher_log_probs|loss_add_tail|data_loss_weight"},
    {"distil|grpo", "temperature"},
    {"grpo",
     "max_completion_length|rollouts|reward_funcs|reward_weights|reward_timeout|num_generations|"
     "num_iterations|"
     "steps_per_generation|generation_batch_size|top_p|top_k|min_p|repetition_penalty|epsilon|"
     "epsilon_high|delta|importance_sampling_level|scale_rewards|multi_objective_aggregation|"
     "mask_truncated_completions|top_entropy_quantile|entropy_coef|use_bias_correction_kl|"
     "sapo_temperature_pos|sapo_temperature_neg|vespo_k_pos|vespo_lambda_pos|vespo_k_neg|"
     "vespo_lambda_neg|off_policy_mask_threshold|shuffle_dataset|zero_mismatch"},
};

bool has_word(std::string_view words, std::string_view word) {
  const auto all = split_text(words, '|');
  return std::find(all.begin(), all.end(), word) != all.end();
}

// The losses that a task knows; the first is its default.
std::string_view losses_of(std::string_view task) {
  return task == "dpo"    ? "sigmoid|hinge|ipo|sigmoid_norm|exo_pair|nca_pair|robust|bco_pair|"
                            "sppo_hard|aot|aot_unpaired|apo_zero|apo_down|discopop|sft"
         : task == "kto"  ? "kto|apo_zero_unpaired"
         : task == "cpo"  ? "sigmoid|hinge|ipo|simpo|alphapo"
         : task == "grpo" ? "dapo|grpo|bnpo|dr_grpo|cispo|sapo|luspo|vespo"
                          : "";
}

void resolve_losses(Resolution& r, PostTrainingConfig& p) {
  const std::string key = post_key("loss_type");
  const auto known = split_text(losses_of(*p.task), '|');
  if (known.empty()) {
    return;
  }
  if (!p.loss_type) {
    p.loss_type = {std::string(known.front())};
    r.derived(key, kTask);
  }
  for (const std::string& loss : *p.loss_type) {
    if (std::find(known.begin(), known.end(), loss) == known.end()) {
      r.error(key, concat("'", loss, "' is no loss of ", *p.task, "; expected one of ",
                          losses_of(*p.task)));
    }
  }
  if (p.loss_type->empty() || (p.loss_type->size() > 1 && p.task != "dpo")) {
    r.error(key, concat("has ", p.loss_type->size(), " losses, expected one",
                        p.task == "dpo" ? " or more" : ""));
  }
  if (p.loss_weights && p.loss_weights->size() != p.loss_type->size()) {
    r.error(post_key("loss_weights"), concat("has ", p.loss_weights->size(), " numbers for the ",
                                             p.loss_type->size(), " of loss_type"));
  }
}

// A student has one teacher, and of a teacher's file everything else.
void resolve_teacher(Resolution& r, const PostTrainingConfig& p) {
  const bool from_file = p.teacher_log_probs.has_value();
  if (!p.teacher && !from_file) {
    r.error(post_key("teacher"),
            "task distil needs a teacher: a model's folder here, or its stored log-probabilities "
            "as teacher_log_probs (generate --logprobs K --to FILE writes them)");
  }
  if (p.teacher && from_file) {
    r.error(post_key("teacher_log_probs"), "stands in place of teacher; keep one of them");
  }
  if (from_file && p.data) {
    r.error(post_key("data"), "teacher_log_probs has its own texts; leave data out");
  }
  if (from_file && p.validation_data) {
    r.error(post_key("validation_data"),
            "teacher_log_probs has log-probabilities of its own texts alone; leave it out");
  }
  if (from_file && r.config().training_config.eval_interval) {
    r.error("training_config.eval_interval",
            "is set, but teacher_log_probs has no texts to evaluate on; set it to null");
  }
  if (from_file && p.truncation_mode == "keep_end") {
    r.error(post_key("truncation_mode"),
            "what a teacher has said of a text with its beginning does not hold without it; "
            "expected keep_start with teacher_log_probs");
  }
  if (!from_file) {
    r.idle(post_key("loss_add_tail"), "without teacher_log_probs: all of the vocabulary counts");
  }
  if (p.beta && *p.beta > 1) {
    r.error(post_key("beta"), concat("is ", *p.beta,
                                     ", expected 0 (forward divergence) to 1 (reverse) with task "
                                     "distil"));
  }
}

void switch_off(Resolution& r, const char* key, double& share) {
  if (share > 0) {
    r.note(key, concat("is taken as 0, not ", number_text(share),
                       ": post_training_config.disable_dropout is True"));
    share = 0;
  }
}

void switch_off_dropout(Resolution& r) {
  AllConfig& config = r.config();
  switch_off(r, "model_config.hidden_dropout", config.model_config.hidden_dropout);
  switch_off(r, "model_config.attention_dropout", config.model_config.attention_dropout);
  switch_off(r, "lora_config.lora_dropout", config.lora_config.lora_dropout);
  config.model_config.lora.lora_dropout = config.lora_config.lora_dropout;
  if (config.model_config.fa_config) {
    config.model_config.fa_config->keep_prob = 1;
  }
}

}  // namespace

void resolve_post_training(Resolution& r) {
  PostTrainingConfig& p = r.config().post_training_config;
  if (!r.sound({kTask})) {
    return;
  }
  if (!p.task) {
    for (const Key& key : post_training_keys()) {
      if (key.name != "task") {
        r.idle(post_key(key.name), "without task");
      }
    }
    return;
  }
  const std::string& task = *p.task;
  for (const TaskKeys& some : kTaskKeys) {
    if (!has_word(some.tasks, task)) {
      for (const std::string_view name : split_text(some.keys, '|')) {
        r.idle(post_key(name), concat("with task ", task));
      }
    }
  }
  if (!p.beta && task != "reward") {
    p.beta = task == "grpo" ? 0.0 : task == "distil" ? 1.0 : 0.1;
    r.derived(post_key("beta"), kTask);
  }
  if (!p.disable_dropout) {
    p.disable_dropout = task != "grpo" && task != "distil";
    r.derived(post_key("disable_dropout"), kTask);
  }
  if (*p.disable_dropout) {
    switch_off_dropout(r);
  }
  resolve_losses(r, p);
  if (task == "distil") {
    resolve_teacher(r, p);
  }
  resolve_task_data(r);
  resolve_preferences(r);
  if (task == "grpo") {
    resolve_grpo(r);
  }
}

}  // namespace tapestry::config

// What reinforcement asks of other keys.
#include <algorithm>
#include <string>
#include <string_view>

#include "autograd/tensor/error.h"
#include "parallel_core/config/resolve/resolve.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/yaml/value.h"

namespace tapestry::config {

namespace {

std::string grpo_key(std::string_view name) { return concat("post_training_config.", name); }

void idle_keys(Resolution& r, std::string_view names, const std::string& why) {
  for (const std::string_view name : split_text(names, '|')) {
    r.idle(grpo_key(name), why);
  }
}

// Keys that the run's loss does not look at.
void idle_with_loss(Resolution& r, const PostTrainingConfig& p) {
  const std::string& loss = p.loss_type->front();
  const std::string why = concat("with loss_type ", loss);
  const bool is_clipped = loss != "cispo" && loss != "sapo" && loss != "vespo";
  const bool has_divergence = p.beta.value_or(0) > 0;
  if (!is_clipped) {
    idle_keys(r, "delta", why);
  }
  if (loss == "sapo" || loss == "vespo") {
    idle_keys(r, "epsilon|epsilon_high", why);
  } else if (loss == "cispo" && p.epsilon_high) {
    idle_keys(r, "epsilon", concat(why, " and epsilon_high, the bound itself"));
  }
  if (loss != "sapo") {
    idle_keys(r, "sapo_temperature_pos|sapo_temperature_neg", why);
  }
  if (loss != "vespo") {
    idle_keys(r, "vespo_k_pos|vespo_lambda_pos|vespo_k_neg|vespo_lambda_neg", why);
  } else if (!has_divergence || !p.use_bias_correction_kl) {
    idle_keys(r, "importance_sampling_level", concat(why, ", whose weights are of sequences"));
  }
  if (loss == "luspo" && p.importance_sampling_level == "token") {
    r.note(grpo_key("importance_sampling_level"),
           "is token; loss_type luspo is meant for ratios of sequences: sequence");
  }
}

void resolve_completions(Resolution& r, const PostTrainingConfig& p) {
  if (!p.rollouts) {
    return;
  }
  if (p.data) {
    r.error(grpo_key("rollouts"),
            "names stored completions, and post_training_config.data prompts to sample others of; "
            "leave one of them out");
  }
  const std::string why = "with stored completions (rollouts)";
  idle_keys(r, "reward_funcs|reward_timeout|top_p|top_k|min_p|repetition_penalty|zero_mismatch",
            why);
  if (p.loss_type && !p.loss_type->empty() && p.loss_type->front() != "dr_grpo") {
    idle_keys(r, "max_completion_length", why);
  }
}

}  // namespace

void resolve_grpo(Resolution& r) {
  const AllConfig& config = r.config();
  const PostTrainingConfig& p = config.post_training_config;
  resolve_completions(r, p);
  const int64_t row = config.model_config.seq_length;
  if (p.data && r.sound({"model_config.seq_length"}) && p.max_completion_length >= row) {
    r.error(
        grpo_key("max_completion_length"),
        concat("is ", p.max_completion_length, ", which leaves no room for a prompt in rows of ",
               row, " tokens (model_config.seq_length); set a smaller one"));
  }
  if (p.steps_per_generation && p.generation_batch_size) {
    r.error(grpo_key("generation_batch_size"),
            concat("is ", *p.generation_batch_size, " and steps_per_generation ",
                   *p.steps_per_generation,
                   "; they say the same in completions and in steps: leave one of them out"));
  }
  if (config.training_config.eval_interval && (p.rollouts || p.validation_data)) {
    r.error("training_config.eval_interval",
            "asks for evaluations, which task grpo has none of: its metrics are those of the "
            "completions that it trains on; set it to null");
  }
  if (p.reward_weights && !p.rollouts && p.reward_weights->size() != p.reward_funcs.size()) {
    r.error(grpo_key("reward_weights"),
            concat("has ", p.reward_weights->size(), " numbers for the ", p.reward_funcs.size(),
                   " of reward_funcs; give one for each"));
  }
  if (p.multi_objective_aggregation == "normalize_then_sum") {
    idle_keys(r, "scale_rewards", "with multi_objective_aggregation normalize_then_sum");
  }
  if (p.beta.value_or(0) <= 0) {
    idle_keys(r, "reference|use_bias_correction_kl", "with beta 0");
  }
  if (r.sound({"post_training_config.loss_type"}) && p.loss_type && !p.loss_type->empty()) {
    idle_with_loss(r, p);
  }
}

}  // namespace tapestry::config

// What follows pre-training: preferences, rewards, distillation, reinforcement. Part of config.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tapestry {

/// Section post_training_config: names and defaults are TRL's (trl 1.16). Where a default depends
/// on the task, the member is empty until the configuration is resolved; afterwards it has the
/// task's value, and stays empty for tasks that do not know the key.
struct PostTrainingConfig {
  std::optional<std::string> task;  // dpo | kto | orpo | cpo | reward | distil | grpo; empty: none
  std::optional<std::vector<std::string>> data;
  std::optional<std::vector<std::string>> validation_data;
  std::optional<std::string> reference;      // a folder, adapter_off; empty: as it was at the start
  std::optional<int64_t> max_length = 1024;  // null: seq_length
  std::string truncation_mode = "keep_start";
  std::optional<bool> disable_dropout;  // resolved
  std::optional<double> beta;           // resolved

  std::optional<std::vector<std::string>> loss_type;  // resolved
  std::optional<std::vector<double>> loss_weights;
  double label_smoothing = 0.0;

  // dpo
  std::string f_divergence_type = "reverse_kl";
  double f_alpha_divergence_coef = 0.5;
  std::optional<double> ld_alpha;
  bool use_weighting = false;
  double discopop_tau = 0.05;

  // kto
  double desirable_weight = 1.0;
  double undesirable_weight = 1.0;

  // cpo
  double cpo_alpha = 1.0;
  double simpo_gamma = 0.5;
  double alpha = 0.0;

  // reward
  std::optional<double> center_rewards_coefficient;

  // distil
  std::optional<std::string> teacher;            // folder of a model in the same process
  std::optional<std::string> teacher_log_probs;  // file that generate --logprobs --to has written
  bool loss_add_tail = true;
  double data_loss_weight = 0.0;

  // grpo
  std::optional<std::string> rollouts;  // stored completions
  std::vector<std::string> reward_funcs;
  std::optional<std::vector<double>> reward_weights;
  double reward_timeout = 60.0;  // seconds
  int64_t num_generations = 8;
  int64_t max_completion_length = 512;
  int64_t num_iterations = 1;
  std::optional<int64_t> steps_per_generation;   // resolved
  std::optional<int64_t> generation_batch_size;  // resolved
  double temperature = 1.0;
  double top_p = 1.0;
  int64_t top_k = 0;
  std::optional<double> min_p;
  double repetition_penalty = 1.0;
  double epsilon = 0.2;
  std::optional<double> epsilon_high;  // empty: epsilon
  std::optional<double> delta;
  std::string importance_sampling_level = "token";  // token | sequence
  std::string scale_rewards = "group";              // group | batch | none
  std::string multi_objective_aggregation = "sum_then_normalize";
  bool mask_truncated_completions = false;
  double top_entropy_quantile = 1.0;
  double entropy_coef = 0.0;
  bool use_bias_correction_kl = true;
  double sapo_temperature_pos = 1.0;
  double sapo_temperature_neg = 1.05;
  double vespo_k_pos = 2.0;
  double vespo_lambda_pos = 3.0;
  double vespo_k_neg = 3.0;
  double vespo_lambda_neg = 2.0;
  std::optional<double> off_policy_mask_threshold;
  bool shuffle_dataset = true;
  bool zero_mismatch = true;  // sampler and trainer compute in one order

  bool operator==(const PostTrainingConfig&) const = default;
};

}  // namespace tapestry

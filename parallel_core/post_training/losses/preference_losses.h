// Losses of preferences, as formulas of the log-probabilities of whole completions, in double.
//
// Source: trl 1.16 (DPOTrainer, KTOTrainer, ORPOTrainer, CPOTrainer), whose names these are. A
// completion's log-probability is the sum of its tokens', prompts excluded.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "parallel_core/config/post_training_config.h"

namespace tapestry::post_training {

/// A pair's completions under the policy and, where there is one, under the reference.
struct PairLogProbs {
  double chosen = 0;
  double rejected = 0;
  double reference_chosen = 0;
  double reference_rejected = 0;
  int64_t chosen_tokens = 0;  ///< of the completion
  int64_t rejected_tokens = 0;
};

/// A pair's loss with its derivatives by PairLogProbs::chosen and ::rejected.
struct PairLoss {
  double value = 0;
  double by_chosen = 0;
  double by_rejected = 0;
};

/// A completion's loss with its derivative by the log-probability.
struct CompletionLoss {
  double value = 0;
  double derivative = 0;
};

// -- DPO ------------------------------------------------------------------------------------------
/// Whether the loss compares sorted lists of a whole batch, so that dpo_loss() has none of a pair.
bool compares_sorted(std::string_view loss_type);
/// Any loss type of dpo but `sft`, which is a mean over tokens, and those of compares_sorted.
/// `config` is resolved.
PairLoss dpo_loss(std::string_view loss_type,
                  const PostTrainingConfig& config,
                  const PairLogProbs& pair);
/// Element k of the sorted lists of `aot` and `aot_unpaired`, by its difference delta.
CompletionLoss aot_loss(const PostTrainingConfig& config, double delta);
/// The sum of a pair's losses of config.loss_type, times config.loss_weights, but for those that
/// are none of a pair.
PairLoss weighted_dpo_loss(const PostTrainingConfig& config, const PairLogProbs& pair);
/// The factor of loss number i of config.loss_type.
double loss_weight(const PostTrainingConfig& config, size_t i);

// -- KTO ------------------------------------------------------------------------------------------
/// `log_ratio` is that of policy and reference, whose gradient it has; `kl` the reference point.
/// Times desirable_weight or undesirable_weight.
CompletionLoss kto_loss(const PostTrainingConfig& config,
                        double log_ratio,
                        bool desirable,
                        double kl);

// -- ORPO and CPO, which have no reference --------------------------------------------------------
/// ORPO's term of a pair, -beta ln sigmoid(omega), without the cross entropy.
struct OrpoLoss {
  PairLoss loss;
  double log_odds = 0;          ///< omega
  double log_sigmoid_odds = 0;  ///< ln sigmoid(omega)
};
/// The means of log-probabilities are held below -1e-7, where the odds end, constant from there on.
OrpoLoss orpo_loss(double beta, const PairLogProbs& pair);

/// CPO's term of a pair, without the cross entropy, and what its rewards are before beta.
struct CpoLoss {
  PairLoss loss;
  double chosen = 0;  ///< sum or mean of the log-probabilities, with alpha its transform
  double rejected = 0;
};
/// Whether the loss is of means over tokens.
bool cpo_takes_means(std::string_view loss_type);
/// Weight of the chosen completions' cross entropy: cpo_alpha, and 0 for `alphapo`.
double cpo_nll_weight(const PostTrainingConfig& config);
CpoLoss cpo_loss(const PostTrainingConfig& config, const PairLogProbs& pair);

}  // namespace tapestry::post_training

// What the completions of a batch are worth beside each other.
#pragma once

#include "parallel_core/config/config.h"
#include "parallel_core/post_training/grpo/rollout_batch.h"

namespace tapestry::post_training {

/// Fills RolloutBatch::advantages and ::metrics from the rewards, as TRL 1.16 does (GRPOTrainer):
/// a completion's reward R is the weighted sum (reward_weights, null: 1 each) of what functions
/// give it. sum_then_normalize: A = R - mean of its group, divided by std + 1e-4 of the group
/// (scale_rewards group), of all completions (batch) or not at all (none). normalize_then_sum:
/// each function's rewards are normalised within the group, weighed and added, and the sum is
/// normalised over all completions. Standard deviations are over n - 1, 0 of a single number.
/// Completions without any reward have the advantage 0 and are in no mean.
/// ValueError for lists of the wrong length, and for reward_weights of another number than there
/// are functions.
void set_advantages(const PostTrainingConfig& config, RolloutBatch& batch);

}  // namespace tapestry::post_training

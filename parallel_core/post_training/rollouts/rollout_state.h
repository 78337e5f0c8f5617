// The completions that a run is training on, as its checkpoints keep them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel_core/post_training/grpo/rollout_batch.h"
#include "parallel_core/post_training/rollouts/sample_completions.h"

namespace tapestry::post_training {

/// All of a RolloutBatch that weights of an earlier time have made, and rewards.
struct RolloutState {
  int64_t number = 0;  ///< of the batch
  std::vector<SampledCompletion> completions;
  std::vector<std::string> reward_names;
  std::vector<std::vector<double>> rewards;  ///< by function, or kNoReward
  CompletionValues ref_log_probs;            ///< empty without a reference
};

/// One JSON object, from which the same bits come back.
std::string rollout_state_json(const RolloutState& state);
/// IoError, naming `source`, for anything else.
RolloutState parse_rollout_state(const std::string& text, const std::string& source);

}  // namespace tapestry::post_training

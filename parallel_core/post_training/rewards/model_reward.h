// A reward model as a reward function.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "parallel_core/post_training/reward/reward_model.h"
#include "parallel_core/post_training/rewards/reward_function.h"

namespace tapestry::post_training {

/// `model: DIR`: a frozen model beside the policy, in its layout, which reads prompt and completion
/// as it was trained to (RewardModel::encode).
class ModelReward final : public RewardFunction {
 public:
  /// Errors of RewardModel. Collective.
  explicit ModelReward(const std::string& folder)
      : RewardFunction("model"), model_({.checkpoint = folder}) {}
  bool is_collective() const override { return true; }
  std::vector<double> rewards(std::span<const JudgedCompletion> completions) override;

 private:
  RewardModel model_;
};

}  // namespace tapestry::post_training

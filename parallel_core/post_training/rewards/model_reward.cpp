#include "parallel_core/post_training/rewards/model_reward.h"

namespace tapestry::post_training {

std::vector<double> ModelReward::rewards(std::span<const JudgedCompletion> completions) {
  std::vector<JudgedText> texts;
  for (const JudgedCompletion& one : completions) {
    texts.push_back({.prompt = prompt_of(*one.line), .completion = one.text});
  }
  return model_.rewards(texts);
}

}  // namespace tapestry::post_training

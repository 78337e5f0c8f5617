// The rewards of a batch of completions, shared out over the ranks of a job.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "parallel_core/post_training/rewards/reward_function.h"

namespace tapestry::post_training {

using RewardFunctions = std::vector<std::unique_ptr<RewardFunction>>;

/// What each function gives each completion: by function, then by completion, the same on every
/// rank. Ranks with different data reward a share each: a function of texts on the first rank of
/// each model-parallel group alone, so that a job has one reward program for each of them. Every
/// rank gives the same completions. RewardError on every rank where one has failed. Collective over
/// the job.
std::vector<std::vector<double>> reward_completions(
    std::span<const std::unique_ptr<RewardFunction>> functions,
    std::span<const JudgedCompletion> completions);

}  // namespace tapestry::post_training

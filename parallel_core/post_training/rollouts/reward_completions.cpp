#include "parallel_core/post_training/rollouts/reward_completions.h"

#include <cmath>
#include <cstring>

#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/post_training/rewards/reward_error.h"
#include "parallel_core/post_training/rollouts/sample_completions.h"

namespace tapestry::post_training {

namespace {

// A NaN that a function has computed is no reward left out: only programs say null.
void check_rewards(const RewardFunction& function,
                   std::span<const JudgedCompletion> completions,
                   std::span<const double> rewards) {
  for (size_t i = 0; i < rewards.size() && function.is_collective(); ++i) {
    if (!std::isfinite(rewards[i])) {
      throw RewardError(concat("the reward function ", function.name(), " gives ",
                               std::isnan(rewards[i]) ? "NaN" : "an infinite number",
                               " for the completion ", excerpt_of(completions[i].text),
                               " of the prompt ",
                               excerpt_of(completions[i].line->dump(
                                   -1, ' ', false, nlohmann::json::error_handler_t::replace))));
    }
  }
}

std::string bytes_of(const std::vector<double>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)};
}

}  // namespace

std::vector<std::vector<double>> reward_completions(
    std::span<const std::unique_ptr<RewardFunction>> functions,
    std::span<const JudgedCompletion> completions) {
  ProcessGroup& sharing = sharing_group();
  ProcessGroup& world = get_world_group();
  const bool speaks = get_model_parallel_group().rank() == 0;
  const CompletionRange own =
      part_of_completions(std::ssize(completions), sharing.rank(), sharing.size());
  const auto share =
      completions.subspan(static_cast<size_t>(own.begin), static_cast<size_t>(own.size()));
  std::vector<std::vector<double>> all;
  for (const auto& function : functions) {
    std::vector<double> rewards;
    try {
      all_or_none(world, [&] {
        if (speaks || function->is_collective()) {
          rewards = function->rewards(share);
          check_rewards(*function, share, rewards);
        }
      });
    } catch (const Error& error) {
      throw RewardError(error.what());
    }
    std::string packed;
    if (speaks) {
      packed.assign(reinterpret_cast<const char*>(&own.begin), sizeof(own.begin));
      packed += bytes_of(rewards);
    }
    std::vector<double>& values = all.emplace_back(completions.size());
    for (const std::string& text : all_gather_text(world, packed)) {
      if (text.empty()) {
        continue;
      }
      int64_t begin = 0;
      std::memcpy(&begin, text.data(), sizeof(begin));
      std::memcpy(values.data() + begin, text.data() + sizeof(begin), text.size() - sizeof(begin));
    }
  }
  return all;
}

}  // namespace tapestry::post_training

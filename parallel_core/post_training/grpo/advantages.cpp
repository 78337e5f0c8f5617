#include "parallel_core/post_training/grpo/advantages.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry::post_training {

namespace {

// What keeps advantages of nearly equal rewards finite.
constexpr double kStdFloor = 1e-4;
// A standard deviation below it is shown as none (torch.isclose to 0).
constexpr double kZeroStd = 1e-8;

// Mean and standard deviation (over n - 1) of what is there; both 0 of nothing.
struct Moments {
  int64_t count = 0;
  double mean = 0;
  double std = 0;
};

Moments moments(std::span<const double> values) {
  Moments result;
  for (const double value : values) {
    if (!std::isnan(value)) {
      result.mean += value;
      ++result.count;
    }
  }
  if (result.count == 0) {
    return result;
  }
  result.mean /= static_cast<double>(result.count);
  double squares = 0;
  for (const double value : values) {
    if (!std::isnan(value)) {
      squares += (value - result.mean) * (value - result.mean);
    }
  }
  result.std = result.count > 1 ? std::sqrt(squares / static_cast<double>(result.count - 1)) : 0;
  return result;
}

using Lists = std::vector<std::vector<double>>;

// Weighted sums of what there is by completion; kNoReward where there is nothing.
std::vector<double> weighted_sums(const Lists& lists,
                                  const std::vector<double>& weights,
                                  size_t completions) {
  std::vector<double> sums(completions, kNoReward);
  for (size_t f = 0; f < lists.size(); ++f) {
    for (size_t i = 0; i < completions; ++i) {
      if (!std::isnan(lists[f][i])) {
        sums[i] = (std::isnan(sums[i]) ? 0 : sums[i]) + weights[f] * lists[f][i];
      }
    }
  }
  return sums;
}

// (x - mean) / (std + floor) within each group.
std::vector<double> normalized_in_groups(std::span<const double> values, size_t group) {
  std::vector<double> result(values.begin(), values.end());
  for (size_t first = 0; first < values.size(); first += group) {
    const Moments of_group = moments(values.subspan(first, group));
    for (size_t i = first; i < first + group; ++i) {
      result[i] = (values[i] - of_group.mean) / (of_group.std + kStdFloor);
    }
  }
  return result;
}

// Advantages, and the standard deviation that each completion's reward was held against.
struct Scaled {
  std::vector<double> advantages;
  std::vector<double> stds;
};

Scaled scaled_sums(const std::vector<double>& rewards, size_t group, const std::string& scale) {
  Scaled result = {rewards, std::vector<double>(rewards.size(), moments(rewards).std)};
  for (size_t first = 0; first < rewards.size(); first += group) {
    const Moments of_group = moments(std::span(rewards).subspan(first, group));
    for (size_t i = first; i < first + group; ++i) {
      if (scale != "batch") {
        result.stds[i] = of_group.std;
      }
      result.advantages[i] =
          (rewards[i] - of_group.mean) / (scale == "none" ? 1 : result.stds[i] + kStdFloor);
    }
  }
  return result;
}

Scaled summed_normalized(const RolloutBatch& batch, const std::vector<double>& weights) {
  const auto group = static_cast<size_t>(batch.num_generations);
  Lists normalized;
  for (const std::vector<double>& list : batch.rewards) {
    normalized.push_back(normalized_in_groups(list, group));
  }
  const auto count = static_cast<size_t>(batch.completions.size());
  const std::vector<double> sums = weighted_sums(normalized, weights, count);
  const Moments of_all = moments(sums);
  Scaled result = {sums, std::vector<double>(count, of_all.std)};
  for (double& value : result.advantages) {
    value = (value - of_all.mean) / (of_all.std + kStdFloor);
  }
  return result;
}

void add_lengths(const std::string& name, const std::vector<double>& lengths, NamedValues& values) {
  const auto [least, most] = std::minmax_element(lengths.begin(), lengths.end());
  const bool any = !lengths.empty();
  values.emplace_back("completions/mean_" + name, any ? moments(lengths).mean : 0);
  values.emplace_back("completions/min_" + name, any ? *least : 0);
  values.emplace_back("completions/max_" + name, any ? *most : 0);
}

NamedValues metrics_of(const RolloutBatch& batch,
                       const std::vector<double>& rewards,
                       const std::vector<double>& stds) {
  NamedValues values;
  std::vector<double> lengths;
  std::vector<double> terminated;
  for (int64_t i = 0; i < batch.completions.size(); ++i) {
    lengths.push_back(static_cast<double>(batch.completions.completion_tokens(i)));
    if (!batch.truncated[static_cast<size_t>(i)]) {
      terminated.push_back(lengths.back());
    }
  }
  const auto count = static_cast<double>(lengths.size());
  add_lengths("length", lengths, values);
  add_lengths("terminated_length", terminated, values);
  values.emplace_back("completions/clipped_ratio",
                      1 - static_cast<double>(terminated.size()) / count);
  for (size_t f = 0; f < batch.rewards.size(); ++f) {
    const Moments of_function = moments(batch.rewards[f]);
    if (of_function.count > 0) {
      values.emplace_back(concat("rewards/", batch.reward_names[f], "/mean"), of_function.mean);
      values.emplace_back(concat("rewards/", batch.reward_names[f], "/std"), of_function.std);
    }
  }
  const Moments of_all = moments(rewards);
  values.emplace_back("reward", of_all.mean);
  values.emplace_back("reward_std", of_all.std);
  const auto zeros =
      std::count_if(stds.begin(), stds.end(), [](double s) { return s <= kZeroStd; });
  values.emplace_back("frac_reward_zero_std", static_cast<double>(zeros) / count);
  return values;
}

void check_lists(const PostTrainingConfig& config, const RolloutBatch& batch) {
  const auto count = static_cast<size_t>(batch.completions.size());
  check<ValueError>(batch.num_generations > 0 && count > 0 &&
                        batch.completions.size() % batch.num_generations == 0,
                    "rollouts: ", count, " completions are no groups of num_generations ",
                    batch.num_generations);
  check<ValueError>(!batch.rewards.empty() && batch.reward_names.size() == batch.rewards.size(),
                    "rollouts: ", batch.rewards.size(), " lists of rewards, ",
                    batch.reward_names.size(), " names of reward functions");
  check<ValueError>(batch.truncated.size() == count, "rollouts: ", batch.truncated.size(),
                    " completions are said to be cut off or not, there are ", count);
  for (const std::vector<double>& list : batch.rewards) {
    check<ValueError>(list.size() == count, "rollouts: ", list.size(), " rewards of one function, ",
                      count, " completions");
  }
  if (config.reward_weights) {
    check<ValueError>(config.reward_weights->size() == batch.rewards.size(),
                      "post_training_config.reward_weights has ", config.reward_weights->size(),
                      " numbers, each completion has ", batch.rewards.size(),
                      " rewards; give one for each reward function");
  }
}

}  // namespace

void set_advantages(const PostTrainingConfig& config, RolloutBatch& batch) {
  check_lists(config, batch);
  const std::vector<double> weights =
      config.reward_weights.value_or(std::vector<double>(batch.rewards.size(), 1.0));
  const std::vector<double> rewards =
      weighted_sums(batch.rewards, weights, static_cast<size_t>(batch.completions.size()));
  Scaled scaled =
      config.multi_objective_aggregation == "normalize_then_sum"
          ? summed_normalized(batch, weights)
          : scaled_sums(rewards, static_cast<size_t>(batch.num_generations), config.scale_rewards);
  for (double& advantage : scaled.advantages) {
    advantage = std::isnan(advantage) ? 0 : advantage;
  }
  batch.advantages = std::move(scaled.advantages);
  NamedValues metrics = metrics_of(batch, rewards, scaled.stds);
  batch.metrics.insert(batch.metrics.end(), metrics.begin(), metrics.end());
}

}  // namespace tapestry::post_training

#include "parallel_core/post_training/grpo/advantages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"

namespace tapestry::post_training {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Pointwise;

// Completions of 3, 4, 5, .. tokens, the first of which are cut off.
RolloutBatch batch_of(std::vector<std::vector<double>> rewards, int64_t group, int64_t cut = 0) {
  RolloutBatch batch;
  batch.num_generations = group;
  for (size_t i = 0; i < rewards.front().size(); ++i) {
    batch.completions.add(std::vector<int32_t>{1}, std::vector<int32_t>(3 + i, 2));
    batch.truncated.push_back(static_cast<int64_t>(i) < cut);
  }
  for (size_t f = 0; f < rewards.size(); ++f) {
    batch.reward_names.push_back(std::string(1, static_cast<char>('a' + f)));
  }
  batch.rewards = std::move(rewards);
  return batch;
}

double value_of(const NamedValues& values, const std::string& name) {
  for (const auto& [key, value] : values) {
    if (key == name) {
      return value;
    }
  }
  ADD_FAILURE() << "no " << name;
  return 0;
}

bool has_value(const NamedValues& values, const std::string& name) {
  return std::any_of(values.begin(), values.end(), [&](const auto& v) { return v.first == name; });
}

// Standard deviations over n - 1: of 1, 3 it is sqrt(2), of 0, 4 sqrt(8).
TEST(Advantages, OfGroups) {
  RolloutBatch batch = batch_of({{1, 3, 0, 4}}, 2);
  set_advantages({}, batch);
  const double first = 1 / (std::sqrt(2.0) + 1e-4);
  const double second = 2 / (std::sqrt(8.0) + 1e-4);
  EXPECT_THAT(batch.advantages, Pointwise(DoubleNear(1e-12), {-first, first, -second, second}));
  EXPECT_DOUBLE_EQ(value_of(batch.metrics, "reward"), 2);
  EXPECT_NEAR(value_of(batch.metrics, "reward_std"), std::sqrt(10.0 / 3), 1e-12);
  EXPECT_DOUBLE_EQ(value_of(batch.metrics, "frac_reward_zero_std"), 0);
}

TEST(Advantages, ScaledByAllOrNotAtAll) {
  PostTrainingConfig config;
  config.scale_rewards = "batch";
  RolloutBatch batch = batch_of({{1, 3, 0, 4}}, 2);
  set_advantages(config, batch);
  const double std = std::sqrt(10.0 / 3) + 1e-4;
  EXPECT_THAT(batch.advantages,
              Pointwise(DoubleNear(1e-12), {-1 / std, 1 / std, -2 / std, 2 / std}));
  config.scale_rewards = "none";
  batch = batch_of({{1, 3, 2, 2}}, 2);
  set_advantages(config, batch);
  EXPECT_THAT(batch.advantages, ElementsAre(-1, 1, 0, 0));
  EXPECT_DOUBLE_EQ(value_of(batch.metrics, "frac_reward_zero_std"), 0.5);
}

TEST(Advantages, WeightsOfFunctions) {
  PostTrainingConfig config;
  config.scale_rewards = "none";
  config.reward_weights = {2.0, -1.0};
  RolloutBatch batch = batch_of({{1, 2}, {10, 20}}, 2);
  set_advantages(config, batch);
  EXPECT_THAT(batch.advantages, ElementsAre(4, -4));  // rewards -8 and -16
  EXPECT_DOUBLE_EQ(value_of(batch.metrics, "reward"), -12);
  EXPECT_DOUBLE_EQ(value_of(batch.metrics, "rewards/b/mean"), 15);
  EXPECT_NEAR(value_of(batch.metrics, "rewards/b/std"), std::sqrt(50.0), 1e-12);
}

// Each function over its groups, their sum over all completions.
TEST(Advantages, NormalizedThenSummed) {
  PostTrainingConfig config;
  config.multi_objective_aggregation = "normalize_then_sum";
  config.reward_weights = {0.5, 2.0};
  RolloutBatch batch = batch_of({{1, 3, 0, 4}, {7, 7, 1, 3}}, 2);
  set_advantages(config, batch);
  const double a = 0.5 / (std::sqrt(2.0) + 1e-4);
  const double b = 0.5 * 2 / (std::sqrt(8.0) + 1e-4);
  const double c = 2.0 / (std::sqrt(2.0) + 1e-4);
  const std::vector<double> sums = {-a, a, -b - c, b + c};
  double squares = 0;  // their mean is 0
  for (const double sum : sums) {
    squares += sum * sum;
  }
  const double std = std::sqrt(squares / 3) + 1e-4;
  EXPECT_THAT(batch.advantages, Pointwise(DoubleNear(1e-12), {sums[0] / std, sums[1] / std,
                                                              sums[2] / std, sums[3] / std}));
}

TEST(Advantages, WithoutAnyRewardThereIsNoSignal) {
  PostTrainingConfig config;
  config.scale_rewards = "none";
  RolloutBatch batch = batch_of({{1, kNoReward, 3}, {kNoReward, kNoReward, 1}}, 3);
  set_advantages(config, batch);
  EXPECT_THAT(batch.advantages, ElementsAre(-1.5, 0, 1.5));  // rewards 1, none, 4
  EXPECT_DOUBLE_EQ(value_of(batch.metrics, "reward"), 2.5);
  EXPECT_DOUBLE_EQ(value_of(batch.metrics, "rewards/a/mean"), 2);
  EXPECT_DOUBLE_EQ(value_of(batch.metrics, "rewards/b/mean"), 1);
  config.multi_objective_aggregation = "normalize_then_sum";
  batch = batch_of({{1, kNoReward, 3}, {kNoReward, kNoReward, kNoReward}}, 3);
  set_advantages(config, batch);
  EXPECT_LT(batch.advantages[0], 0);
  EXPECT_EQ(batch.advantages[1], 0);
  EXPECT_GT(batch.advantages[2], 0);
  EXPECT_FALSE(has_value(batch.metrics, "rewards/b/mean"));
}

TEST(Advantages, GroupsOfOne) {
  RolloutBatch batch = batch_of({{5, 7}}, 1);
  set_advantages({}, batch);
  EXPECT_THAT(batch.advantages, ElementsAre(0, 0));
  EXPECT_DOUBLE_EQ(value_of(batch.metrics, "frac_reward_zero_std"), 1);
}

TEST(Advantages, LengthsOfCompletions) {
  RolloutBatch batch = batch_of({{1, 2, 3, 4}}, 2, 1);
  set_advantages({}, batch);
  EXPECT_DOUBLE_EQ(value_of(batch.metrics, "completions/mean_length"), 4.5);
  EXPECT_DOUBLE_EQ(value_of(batch.metrics, "completions/min_length"), 3);
  EXPECT_DOUBLE_EQ(value_of(batch.metrics, "completions/max_length"), 6);
  EXPECT_DOUBLE_EQ(value_of(batch.metrics, "completions/clipped_ratio"), 0.25);
  EXPECT_DOUBLE_EQ(value_of(batch.metrics, "completions/min_terminated_length"), 4);
}

TEST(Advantages, WeightsOfOtherFunctionsAreRefused) {
  PostTrainingConfig config;
  config.reward_weights = {1.0};
  RolloutBatch batch = batch_of({{1, 2}, {3, 4}}, 2);
  EXPECT_THROW(set_advantages(config, batch), ValueError);
  batch = batch_of({{1, 2, 3}}, 2);
  EXPECT_THROW(set_advantages({}, batch), ValueError);
}

}  // namespace
}  // namespace tapestry::post_training

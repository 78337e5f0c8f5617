#include "parallel_core/transformer/moe/capacity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "autograd/ops/random.h"
#include "autograd/tensor/error.h"
#include "parallel_core/transformer/moe/expert_choice.h"
#include "tests/parallel_core/transformer/moe/router_testing.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;

TEST(ExpertCapacity, IsRoundedAsDoublesFromLeftToRight) {
  EXPECT_EQ(expert_capacity(10, 2, 8, 1.0), 3);
  EXPECT_EQ(expert_capacity(10, 2, 8, 0.01), 1);
  EXPECT_EQ(expert_capacity(10, 2, 8, 100), 10);  // no more than there are
  EXPECT_EQ(expert_capacity(10, 2, 8, 1e300), 10);
  EXPECT_EQ(expert_capacity(0, 2, 8, 1.0), 0);
  // 50 / 3 * 0.9 is a little above 15 in doubles, and 50 * 1.1 / 5 above 11, though not from the
  // left.
  EXPECT_EQ(expert_capacity(50, 1, 3, 0.9), 16);
  EXPECT_EQ(expert_capacity(25, 4, 6, 0.9), 16);
  EXPECT_EQ(expert_capacity(50, 1, 5, 1.1), 11);
  EXPECT_EQ(expert_capacity(45, 2, 3, 1.1), 33);
  EXPECT_THROW(expert_capacity(10, 2, 8, 0), ValueError);
  EXPECT_THROW(expert_capacity(10, 2, 8, std::numeric_limits<double>::quiet_NaN()), ValueError);
}

TEST(DropPolicy, Names) {
  EXPECT_EQ(drop_policy("probs"), DropPolicy::kProbs);
  EXPECT_EQ(drop_policy("position"), DropPolicy::kPosition);
  EXPECT_EQ(drop_policy("choice"), DropPolicy::kChoice);
  EXPECT_THROW(drop_policy("random"), ValueError);
}

// Four tokens, all of which want expert 0, the later ones more.
Assignments crowd() {
  return {.topk = 2,
          .numbers = {2, 0, 3, 1},
          .experts = {0, 1, 1, 0, 0, 1, 1, 0},
          .gates = {0.75, 0.25, 0.875, 0.125, 0.8125, 0.1875, 0.75, 0.25}};
}

TEST(KeepAssignments, Policies) {
  // Expert 0: gates of numbers 0 .. 3 are 0.125, 0.25, 0.75, 0.8125; first choice of 2 and 3.
  const auto kept = [&](DropPolicy policy) { return keep_assignments(crowd(), 2, 3, policy).kept; };
  EXPECT_THAT(kept(DropPolicy::kProbs), ElementsAre(1, 1, 1, 0, 1, 0, 1, 1));
  EXPECT_THAT(kept(DropPolicy::kPosition), ElementsAre(1, 1, 1, 1, 0, 0, 1, 1));
  EXPECT_THAT(kept(DropPolicy::kChoice), ElementsAre(1, 1, 1, 1, 1, 0, 1, 0));
}

TEST(KeepAssignments, GapsAndCounts) {
  const KeptAssignments found = keep_assignments(crowd(), 3, 3, DropPolicy::kProbs);
  EXPECT_THAT(found.dropped_per_expert, ElementsAre(1, 1, 0));
  EXPECT_EQ(found.smallest_gap, 0.25F - 0.1875F);
  const KeptAssignments all = keep_assignments(crowd(), 3, 4, DropPolicy::kProbs);
  EXPECT_THAT(all.kept, ::testing::Each(1));
  EXPECT_EQ(all.smallest_gap, kNoGap);
  EXPECT_EQ(keep_assignments(crowd(), 3, 3, DropPolicy::kPosition).smallest_gap, kNoGap);
}

TEST(KeepAssignments, NaNIsDroppedFirst) {
  const Assignments all = {.topk = 1,
                           .numbers = {0, 1, 2},
                           .experts = {0, 0, 0},
                           .gates = {testing::kNaN, 0.0F, testing::kNaN}};
  EXPECT_THAT(keep_assignments(all, 1, 1, DropPolicy::kProbs).kept, ElementsAre(0, 1, 0));
  EXPECT_THAT(keep_assignments(all, 1, 2, DropPolicy::kProbs).kept, ElementsAre(1, 1, 0));
  EXPECT_EQ(keep_assignments(all, 1, 2, DropPolicy::kProbs).smallest_gap, kNoGap);
}

TEST(KeepAssignments, TheOrderOfTokensDoesNotMatter) {
  const int64_t tokens = 64;
  const auto values = normal(0, 1, {tokens, 6}, kFloat32, RandomKey{1, 2, 0}).to_vector<float>();
  const ExpertChoice choice = choose_experts(values, {.num_experts = 6, .topk = 3});
  // Few different gates, so that many are equal.
  Assignments straight = {.topk = 3, .numbers = {}, .experts = choice.experts, .gates = {}};
  for (int64_t i = 0; i < tokens * 3; ++i) {
    straight.gates.push_back(static_cast<float>(i * 7 % 5));
  }
  straight.numbers.resize(tokens);
  std::iota(straight.numbers.begin(), straight.numbers.end(), 0);
  Assignments mixed = straight;
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t number = t * 29 % tokens;
    mixed.numbers[static_cast<size_t>(t)] = number;
    for (int64_t j = 0; j < 3; ++j) {
      const auto to = static_cast<size_t>(t * 3 + j);
      const auto from = static_cast<size_t>(number * 3 + j);
      mixed.experts[to] = straight.experts[from];
      mixed.gates[to] = straight.gates[from];
    }
  }
  for (const DropPolicy policy : {DropPolicy::kProbs, DropPolicy::kPosition, DropPolicy::kChoice}) {
    const KeptAssignments a = keep_assignments(straight, 6, 20, policy);
    const KeptAssignments b = keep_assignments(mixed, 6, 20, policy);
    EXPECT_EQ(a.dropped_per_expert, b.dropped_per_expert);
    EXPECT_GT(std::accumulate(a.dropped_per_expert.begin(), a.dropped_per_expert.end(), int64_t{0}),
              0);
    EXPECT_EQ(a.smallest_gap, b.smallest_gap);
    for (int64_t i = 0; i < tokens * 3; ++i) {
      const int64_t number = mixed.numbers[static_cast<size_t>(i / 3)];
      EXPECT_EQ(b.kept[static_cast<size_t>(i)], a.kept[static_cast<size_t>(number * 3 + i % 3)]);
    }
  }
}

TEST(KeepAssignments, RefusesNumbersThatAreNotThoseOfDistinctTokens) {
  Assignments all = crowd();
  all.numbers = {2, 0, 2, 1};
  EXPECT_THROW(keep_assignments(all, 2, 3, DropPolicy::kProbs), ValueError);
  all.numbers = {2, 0, 4, 1};
  EXPECT_THROW(keep_assignments(all, 2, 3, DropPolicy::kProbs), ValueError);
  all.numbers = {2, 0, -1, 1};
  EXPECT_THROW(keep_assignments(all, 2, 3, DropPolicy::kProbs), ValueError);
}

}  // namespace
}  // namespace tapestry

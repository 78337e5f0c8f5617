#include "parallel_core/transformer/moe/expert_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/ops/random.h"
#include "autograd/tensor/error.h"
#include "tests/parallel_core/transformer/moe/router_testing.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

ChoiceRule rule(int64_t experts, int64_t topk) { return {.num_experts = experts, .topk = topk}; }

TEST(ChooseExperts, BestFirstAndLowerOfEquals) {
  EXPECT_THAT(choose_experts(std::vector<float>{1, 3, 2, 3}, rule(4, 3)).experts,
              ElementsAre(1, 3, 2));
  EXPECT_THAT(choose_experts(std::vector<float>{0, -0.0F, 0, -0.0F}, rule(4, 2)).experts,
              ElementsAre(0, 1));
}

TEST(ChooseExperts, NaNIsWorseThanMinusInfinity) {
  const std::vector<float> values = {testing::kNaN, -kInfinity, testing::kNaN, kInfinity};
  EXPECT_THAT(choose_experts(values, rule(4, 4)).experts, ElementsAre(3, 1, 0, 2));
  EXPECT_THAT(choose_experts(std::vector<float>(4, testing::kNaN), rule(4, 2)).experts,
              ElementsAre(0, 1));
}

TEST(ChooseExperts, ExpertsOfOtherGroupsAreWorseThanNaN) {
  ChoiceRule groups = rule(6, 3);
  groups.method = ChoiceRule::Method::kGroupLimitedGreedy;
  groups.num_groups = 2;
  const std::vector<float> values = {9, testing::kNaN, testing::kNaN, 8, 7, 6};
  EXPECT_THAT(choose_experts(values, groups).experts, ElementsAre(0, 1, 2));
}

TEST(ChooseExperts, Gaps) {
  const std::vector<float> two_rows = {4, 2.5, 1, 0, 0.25, 9, 1, 0.5};
  const ExpertChoice found = choose_experts(two_rows, rule(4, 2));
  EXPECT_EQ(found.smallest_gap, 0.5);  // of the second row, 1 and 0.5
  EXPECT_EQ(found.smallest_order_gap, 1.5);
  EXPECT_EQ(found.smallest_group_gap, kNoGap);
  EXPECT_EQ(choose_experts(two_rows, rule(4, 4)).smallest_gap, kNoGap);
  EXPECT_EQ(choose_experts(two_rows, rule(4, 1)).smallest_order_gap, kNoGap);
  EXPECT_EQ(
      choose_experts(std::vector<float>{1, testing::kNaN, testing::kNaN, testing::kNaN}, rule(4, 1))
          .smallest_gap,
      kNoGap);
  EXPECT_EQ(choose_experts(std::vector<float>{}, rule(4, 1)).smallest_gap, kNoGap);
}

TEST(ChooseExperts, ThreadsDoNotMatter) {
  const int threads = num_threads();
  const auto values = normal(0, 1, {4096, 64}, kFloat32, RandomKey{1, 2, 0}).to_vector<float>();
  ChoiceRule groups = rule(64, 6);
  groups.method = ChoiceRule::Method::kNoauxTc;
  groups.num_groups = 8;
  groups.group_topk = 3;
  set_num_threads(1);
  const ExpertChoice one = choose_experts(values, groups);
  set_num_threads(3);
  const ExpertChoice three = choose_experts(values, groups);
  set_num_threads(threads);
  EXPECT_EQ(one.experts, three.experts);
  EXPECT_EQ(one.smallest_gap, three.smallest_gap);
  EXPECT_EQ(one.smallest_group_gap, three.smallest_group_gap);
  EXPECT_EQ(one.smallest_order_gap, three.smallest_order_gap);
}

TEST(ChooseExperts, RefusesPartsOfRows) {
  EXPECT_THROW(choose_experts(std::vector<float>(7, 0), rule(4, 2)), ValueError);
}

struct BadRule {
  std::string name;
  MoEConfig config;
  std::string message;
};

MoEConfig grouped(const char* method, int64_t experts, int64_t topk, int64_t groups, int64_t kept) {
  MoEConfig config;
  config.num_experts = experts;
  config.moe_router_topk = topk;
  config.topk_method = method;
  config.moe_router_num_groups = groups;
  config.moe_router_group_topk = kept;
  return config;
}

MoEConfig ungrouped(const char* method, int64_t experts, int64_t topk) {
  MoEConfig config;
  config.num_experts = experts;
  config.moe_router_topk = topk;
  config.topk_method = method;
  return config;
}

class ChoiceRuleRefuses : public ::testing::TestWithParam<BadRule> {};

TEST_P(ChoiceRuleRefuses, AndSaysWhy) {
  try {
    choice_rule(GetParam().config);
    ADD_FAILURE() << "was not refused";
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(), Says(GetParam().message));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    ChoiceRuleRefuses,
    ::testing::Values(
        BadRule{"TooMany", ungrouped("greedy", 4, 5), "moe_router_topk ... must lie in ... [1, 4]"},
        BadRule{"None", ungrouped("greedy", 4, 0), "number of experts, got 0"},
        BadRule{"Method", ungrouped("best", 4, 2), "topk_method 'best' is not known"},
        BadRule{"GroupsOfGreedy", grouped("greedy", 4, 2, 2, 1), "topk_method ... is greedy"},
        BadRule{"NoGroups", ungrouped("noaux_tc", 4, 2), "noaux_tc needs moe_router_num_groups"},
        BadRule{"Divides", grouped("noaux_tc", 8, 2, 3, 1),
                "3 ... does not divide ... num_experts 8"},
        BadRule{"GroupTopk", grouped("noaux_tc", 8, 2, 2, 3), "must lie in [1, 2]"},
        BadRule{"Room", grouped("group_limited_greedy", 8, 3, 4, 1), "groups have only 2 experts"},
        BadRule{"PairOfOne", grouped("noaux_tc", 4, 2, 4, 2), "a group has one expert"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tapestry

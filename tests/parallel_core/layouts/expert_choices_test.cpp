#include "diagnosis/verify/expert_choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "autograd/ops/map.h"
#include "autograd/ops/ops.h"
#include "autograd/tensor/error.h"
#include "parallel_core/random.h"
#include "tests/parallel_core/layouts/layout_testing.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;

// Two rows of two tokens, three experts, two for each token.
class CloseChoices : public ::testing::Test {
 protected:
  void SetUp() override {
    random_context().step = 3;
    random_context().sample_ids = {10, 11};
    RecordedChoices record(recorded_);
    EXPECT_EQ(choice_observer(), &record);
    std::vector<int32_t> experts = {0, 1, 1, 2, 2, 0, 0, 1};
    const std::vector<float> values = {1, 0.5, 0.500004F, 0, 1, 0.9F, 0.3F, 0, 1, 1, 0.7F, 0};
    record.choose(5, ChoiceUse::kRouting, whole_, values, kRule, experts);
  }
  void TearDown() override { random_context() = {}; }

  void choose(ImposedChoices& impose,
              std::vector<int64_t> numbers,
              const std::vector<float>& values,
              std::vector<int32_t>& experts,
              int64_t layer = 5) {
    GroupTokens tokens = whole_;
    tokens.numbers = std::move(numbers);
    impose.choose(layer, ChoiceUse::kRouting, tokens, values, kRule, experts);
  }
  void report(const ChoiceDifference& difference) { differences_.push_back(difference); }

  static constexpr ChoiceRule kRule = {.num_experts = 3, .topk = 2};
  const GroupTokens whole_ = {.total = 4, .rows = 2, .seq_length = 2, .numbers = {0, 1, 2, 3}};
  ExpertChoices recorded_;
  std::vector<ChoiceDifference> differences_;
};

TEST_F(CloseChoices, AreImposedAndCounted) {
  EXPECT_EQ(choice_observer(), nullptr);
  ImposedChoices impose(recorded_, [&](const ChoiceDifference& d) { report(d); });
  // Tokens 0 and 3 of the same samples: one by a hair, the other by far another choice.
  std::vector<int32_t> experts = {0, 2, 0, 2};
  choose(impose, {0, 3}, {1, 0.5, 0.500004F, 1, 0.7F, 0}, experts);
  EXPECT_THAT(experts, ElementsAre(0, 1, 0, 2));
  EXPECT_EQ(impose.count(), 1);
  EXPECT_EQ(impose.equal(), 0);
  ASSERT_EQ(differences_.size(), 2U);
  EXPECT_TRUE(differences_[0].is_close());
  EXPECT_FALSE(differences_[1].is_close());
  EXPECT_EQ(differences_[1].name, "layers.5.moe.choices");
  EXPECT_EQ(differences_[1].detail, "sample 11, token 1: experts 0, 2 against 0, 1");
  EXPECT_NEAR(differences_[1].gap, 0.7, 1e-6);
}

TEST_F(CloseChoices, OfOtherLayersAndStepsAreNot) {
  ImposedChoices impose(recorded_, [&](const ChoiceDifference& d) { report(d); });
  const std::vector<float> values = {1, 0.5, 0.500004F};
  std::vector<int32_t> experts = {0, 2};
  choose(impose, {0}, values, experts, 4);
  random_context().step = 2;
  choose(impose, {0}, values, experts);
  EXPECT_THAT(experts, ElementsAre(0, 2));
  EXPECT_EQ(impose.count(), 0);
  EXPECT_TRUE(differences_.empty());
}

TEST_F(CloseChoices, AnotherOrderAloneIsNoDifference) {
  ImposedChoices impose(recorded_, [&](const ChoiceDifference& d) { report(d); });
  std::vector<int32_t> experts = {1, 0};
  choose(impose, {0}, {0.5, 1, 0}, experts);
  EXPECT_THAT(experts, ElementsAre(1, 0));
  EXPECT_TRUE(differences_.empty());
}

TEST_F(CloseChoices, NumbersThatAreNoneAreNotClose) {
  ImposedChoices impose(recorded_, [&](const ChoiceDifference& d) { report(d); });
  std::vector<int32_t> experts = {0, 2};
  choose(impose, {0}, {1, NAN, 0.5F}, experts);
  EXPECT_THAT(experts, ElementsAre(0, 2));
  EXPECT_EQ(differences_.size(), 1U);
}

// Two groups of two experts, of which one is chosen; the groups' best are close, the others not.
TEST(CloseGroups, AreImposedWithAllTheirExperts) {
  const ChoiceRule rule = {.num_experts = 4,
                           .topk = 2,
                           .method = ChoiceRule::Method::kGroupLimitedGreedy,
                           .num_groups = 2,
                           .group_topk = 1};
  const GroupTokens tokens = {.total = 2, .rows = 1, .seq_length = 2, .numbers = {0, 1}};
  random_context().sample_ids = {0};
  ExpertChoices recorded;
  std::vector<int32_t> experts = {0, 1, 0, 1};
  const std::vector<float> values = {0.8F, 0.7F, 0.8F, 0.1F, 0.8F, 0.7F, 0.6F, 0.1F};
  RecordedChoices(recorded).choose(0, ChoiceUse::kRouting, tokens, values, rule, experts);
  experts = {2, 3, 2, 3};
  ImposedChoices impose(recorded);
  impose.choose(0, ChoiceUse::kRouting, tokens, values, rule, experts);
  EXPECT_THAT(experts, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(impose.count(), 1);
  random_context() = {};
}

// Four tokens want one expert that takes two.
TEST(CloseDrops, AreImposedAndCountedWhereGatesDecide) {
  const GroupTokens whole = {.total = 4, .rows = 1, .seq_length = 4, .numbers = {0, 1, 2, 3}};
  const ChoiceRule rule = {.num_experts = 1, .topk = 1};
  const Assignments all = {.topk = 1,
                           .numbers = whole.numbers,
                           .experts = {0, 0, 0, 0},
                           .gates = {0.9F, 0.500004F, 0.5F, 0.2F}};
  random_context().sample_ids = {0};
  for (const DropPolicy policy : {DropPolicy::kProbs, DropPolicy::kPosition}) {
    ExpertChoices recorded;
    RecordedChoices record(recorded);
    std::vector<int32_t> experts = all.experts;
    record.choose(2, ChoiceUse::kRouting, whole, all.gates, rule, experts);
    std::vector<uint8_t> kept = {1, 1, 0, 0};
    record.keep(2, whole, all, policy, kept);
    std::vector<ChoiceDifference> differences;
    ImposedChoices impose(recorded, [&](const auto& d) { differences.push_back(d); });
    kept = {0, 0, 1, 1};
    impose.keep(2, whole, all, policy, kept);
    const bool gates_decide = policy == DropPolicy::kProbs;
    EXPECT_EQ(kept, gates_decide ? std::vector<uint8_t>({0, 1, 0, 1})
                                 : std::vector<uint8_t>({0, 0, 1, 1}));
    EXPECT_EQ(impose.count(), gates_decide ? 2 : 0);
    ASSERT_EQ(differences.size(), 4U);
    EXPECT_EQ(differences[3].name, "layers.2.moe.kept");
    EXPECT_EQ(differences[3].detail,
              "sample 0, token 3: expert 0 keeps what it drops in one process");
    EXPECT_NEAR(differences[3].gap, gates_decide ? 0.3 : kNoGap, 1e-5);
  }
  random_context() = {};
}

// The first router's first two experts.
Tensor tied_rows(ParallelModel& model) {
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    if (entry.name.ends_with("layers.0.mlp.router.weight")) {
      return entry.parameter->detach().slice(0, 0, 2);
    }
  }
  throw ValueError("no router");
}

// Two experts that no token prefers: what rounding would choose is as in one process, and the
// layout agrees.
TEST(ImposedChoices, LetALayoutWithTiesAgree) {
  const std::string moe = "moe_config.";
  const LayoutPair pair = testing::small_pair(
      "tp=2,dp=2,ep=2",
      {"model_config.vocab_size=32", "dataset_config.batch_size=2", moe + "num_experts=4",
       moe + "moe_router_topk=2", moe + "moe_ffn_hidden_size=24"});
  VerifyOptions options{.steps = 1, .jitter = 0, .timeout_seconds = testing::kTestTimeout};
  options.parts = testing::made_up_data();
  options.model = [](const AllConfig& config) -> std::unique_ptr<ParallelModel> {
    std::unique_ptr<ParallelModel> model = get_model(config);
    const Tensor rows = tied_rows(*model);
    copy_values(dense_copy(rows.slice(0, 0, 1)), rows.slice(0, 1, 2));
    return model;
  };
  const LayoutReport tied = compare_layout(pair, options);
  EXPECT_TRUE(tied.agrees()) << report_text(tied, pair);
  options.parts.started = [](ParallelModel& model) {
    const Tensor row = tied_rows(model).slice(0, 0, 1);
    copy_values(row * (1 - 0x1p-23), row);
  };
  const LayoutReport moved = compare_layout(pair, options);
  EXPECT_TRUE(moved.agrees()) << report_text(moved, pair);
  EXPECT_GT(moved.imposed_choices, tied.imposed_choices);
  EXPECT_THAT(report_text(moved, pair),
              ::testing::HasSubstr(concat(moved.imposed_choices, " choices of experts")));
}

}  // namespace
}  // namespace tapestry

#include "parallel_core/transformer/moe/balance_loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/ops/ops.h"
#include "autograd/tape/gradcheck.h"
#include "autograd/tensor/error.h"
#include "parallel_core/transformer/moe/expert_bias.h"
#include "tests/parallel_core/transformer/moe/router_testing.h"
#include "tests/says.h"

namespace tapestry {
namespace {

// Two rows of three tokens, two choices of four experts.
BalanceCounts counts() {
  return {.num_experts = 4,
          .rows = 2,
          .seq_length = 3,
          .num_groups = 2,
          .per_expert = {5, 1, 4, 2},
          .per_row = {3, 1, 2, 0, 2, 0, 2, 2}};
}

std::vector<double> weights_of(const MoEBalanceLoss& loss, const BalanceCounts& of) {
  std::vector<double> out(static_cast<size_t>(of.rows * of.num_experts), 0);
  add_balance_weights(loss, of, out);
  return out;
}

// The loss of the whole group where every token has these probabilities.
double loss_of(const MoEBalanceLoss& loss, const BalanceCounts& of, std::vector<double> each) {
  std::vector<double> all;
  for (int64_t t = 0; t < of.rows * of.seq_length; ++t) {
    all.insert(all.end(), each.begin(), each.end());
  }
  const GroupTokens tokens = testing::all_tokens(of.rows, of.seq_length);
  return balance_loss(tensor(all, {tokens.total, of.num_experts}), weights_of(loss, of),
                      tokens.numbers, of.seq_length)
      .item();
}

TEST(BalanceLoss, IsItsCoefficientWhereTheLoadIsEven) {
  BalanceCounts even = counts();
  even.per_expert = {3, 3, 3, 3};
  even.per_row = {2, 1, 2, 1, 1, 2, 1, 2};
  even.previous = {7, 7, 7, 7};
  const std::vector<double> uniform(4, 0.25);
  EXPECT_NEAR(loss_of({"aux_loss", 0.3}, even, uniform), 0.3, 1e-15);
  EXPECT_NEAR(loss_of({"seq_aux_loss", 0.3}, even, uniform), 0.3, 1e-15);
  EXPECT_NEAR(loss_of({"global_aux_loss", 0.3}, even, uniform), 0.3, 1e-15);
  EXPECT_NEAR(loss_of({"device", 0.3}, even, uniform), 0.3, 1e-15);
}

TEST(BalanceLoss, ByHand) {
  const std::vector<double> p = {0.5, 0.25, 0.125, 0.125};
  // 4 (5 0.5 + 1 0.25 + 4 0.125 + 2 0.125) / 12; pools of two: 2 (6 0.75 + 6 0.25) / 12.
  EXPECT_NEAR(loss_of({"aux_loss", 1}, counts(), p), 4 * 3.5 / 12, 1e-15);
  EXPECT_NEAR(loss_of({"device", 1}, counts(), p), 2 * 6.0 / 12, 1e-15);
  // Equal means of rows: the mean of the rows' shares is the group's.
  EXPECT_NEAR(loss_of({"seq_aux_loss", 1}, counts(), p), 4 * 3.5 / 12, 1e-15);
}

TEST(BalanceLoss, GlobalCountsAreThoseOfTheStepBefore) {
  const std::vector<double> p = {0.5, 0.25, 0.125, 0.125};
  BalanceCounts of = counts();
  const double first = loss_of({"aux_loss", 1}, of, p);
  EXPECT_EQ(loss_of({"global_aux_loss", 1}, of, p), first);
  of.previous = {0, 0, 0, 0};
  EXPECT_EQ(loss_of({"global_aux_loss", 1}, of, p), first);
  of.previous = {0, 0, 10, 30};
  EXPECT_NEAR(loss_of({"global_aux_loss", 1}, of, p), 4 * 0.125, 1e-15);
}

TEST(BalanceLoss, Refusals) {
  const auto refused = [](const MoEBalanceLoss& loss, int64_t groups, const char* why) {
    try {
      check_balance_loss(loss, 8, groups);
      ADD_FAILURE() << "was not refused";
    } catch (const ValueError& error) {
      EXPECT_THAT(error.what(), Says(why));
    }
  };
  refused({"comm", 1}, 1, "'comm' is not known");
  refused({"device", 1}, 3, "divides num_experts 8, got 3");
  refused({"device", 1}, 0, "needs expert_group_size");
  EXPECT_THROW(balance_loss(zeros({3, 4}), std::vector<double>(4), {0, 1}, 3), ValueError);
}

TEST(ZLoss, LargeLogitsDoNotOverflow) {
  const Tensor logits = tensor(std::vector<float>{1000, 1000, -1000, 3e4F, 0, 0}, {2, 3});
  const double first = 1000 + std::log(2.0);
  EXPECT_NEAR(router_z_loss(logits, 0.5, 2).item(), 0.25 * (first * first + 9e8), 60);
}

// Every way to make gates and losses, in float64.
TEST(RouterGradients, MatchDifferencesTwice) {
  const Tensor choice = tensor(std::vector<int32_t>{2, 0, 1, 3, 3, 2, 0, 1, 2, 1, 3, 0}, {6, 2});
  const GroupTokens tokens = testing::all_tokens(2, 3);
  const std::vector<double> weights = weights_of({"seq_aux_loss", 2.0}, counts());
  const std::vector<GateRule> rules = {
      {.after_choice = true, .normalises = true, .scaling_factor = 2.5},
      {},
      {.normalises = true},
      {.scores = GateRule::Scores::kSigmoid},
      {.scores = GateRule::Scores::kSigmoid, .normalises = true, .scaling_factor = 0.5},
      {.scores = GateRule::Scores::kSqrtSoftplus},
      {.scores = GateRule::Scores::kSqrtSoftplus, .normalises = true, .scaling_factor = 0.5}};
  for (const GateRule& rule : rules) {
    const auto function = [&](const TensorList& in) -> TensorList {
      const Tensor scores = router_scores(in[0], rule);
      return {expert_gates(in[0], scores, choice, rule),
              balance_loss(balance_probabilities(scores, rule), weights, tokens.numbers, 3),
              router_z_loss(in[0], 0.5, 6)};
    };
    const Tensor logits = normal(0, 1, {6, 4}, kFloat64, RandomKey{3, 1, 0}).set_requires_grad();
    const GradcheckResult once = gradcheck(function, {logits});
    EXPECT_TRUE(once) << once.message;
    const GradcheckResult twice = gradgradcheck(function, {logits});
    EXPECT_TRUE(twice) << twice.message;
  }
}

TEST(GateRules, Refusals) {
  const auto refused = [](const MoEConfig& config, const char* why) {
    try {
      gate_rule(config);
      ADD_FAILURE() << "was not refused";
    } catch (const ValueError& error) {
      EXPECT_THAT(error.what(), Says(why));
    }
  };
  MoEConfig config;
  config.moe_router_topk = 1;
  refused(config, "has no gradient; set ... moe_router_pre_softmax:");
  config.norm_topk_prob = false;  // a softmax over all experts
  EXPECT_FALSE(gate_rule(config).after_choice);
  config = {};
  config.moe_router_score_function = "tanh";
  refused(config, "'tanh' is not known");
  config.moe_router_score_function = "sigmoid";
  config.moe_router_pre_softmax = true;
  refused(config, "moe_router_score_function ... is sigmoid");
  config.moe_router_score_function = "sqrtsoftplus";
  refused(config, "moe_router_score_function ... is sqrtsoftplus");
}

// sqrt(ln(1 + e^x)) and its slope, sigmoid(x) / (2 sqrt(ln(1 + e^x))), also where the softplus is
// below every float32.
TEST(GateRules, RootOfSoftplusHasASlopeWhereverItIs) {
  const GateRule rule = {.scores = GateRule::Scores::kSqrtSoftplus};
  const std::vector<float> at = {-150, -104, -40.5F, -39.5F, -3, 0, 2, 90};
  const Tensor x = tensor(at, {1, std::ssize(at)}).set_requires_grad();
  const Tensor y = router_scores(x, rule);
  sum(y).backward();
  for (int64_t i = 0; i < std::ssize(at); ++i) {
    const double value = at[static_cast<size_t>(i)];
    const double root = value < -30 ? std::exp(value / 2) : std::sqrt(std::log1p(std::exp(value)));
    const double slope =
        value < -30 ? std::exp(value / 2) / 2 : 1 / (1 + std::exp(-value)) / (2 * root);
    // Three roundings of a float32 each, the smallest values being subnormal.
    EXPECT_NEAR(y.to_vector<float>()[static_cast<size_t>(i)], root, 2e-7 * root + 1e-44) << value;
    EXPECT_NEAR(x.grad().to_vector<float>()[static_cast<size_t>(i)], slope, 4e-7 * slope + 1e-44)
        << value;
  }
}

TEST(ExpertBias, MovesByTheSignOfWhatIsMissing) {
  const Tensor bias = tensor({0.5F, 0.25F, -1.0F, 0.0F});
  const uint32_t version = bias.version();
  update_expert_bias(bias, std::vector<int64_t>{5, 0, 3, 4}, 0.001);
  const float rate = 0.001F;
  EXPECT_THAT(bias.to_vector<float>(),
              ::testing::ElementsAre(0.5F - rate, 0.25F + rate, -1.0F, 0.0F - rate));
  EXPECT_NE(bias.version(), version);
}

TEST(ExpertBias, CountsAreIntegersHoweverLarge) {
  const Tensor bias = zeros({3});
  const int64_t huge = int64_t{1} << 60U;  // a third of the sum but for one
  update_expert_bias(bias, std::vector<int64_t>{huge + 1, huge, huge - 1}, 1);
  EXPECT_THAT(bias.to_vector<float>(), ::testing::ElementsAre(-1, 0, 1));
  update_expert_bias(bias, std::vector<int64_t>{0, 0, 0}, 1);
  EXPECT_THAT(bias.to_vector<float>(), ::testing::ElementsAre(-1, 0, 1));
  EXPECT_THROW(update_expert_bias(bias, std::vector<int64_t>{1, 2}, 1), ValueError);
}

}  // namespace
}  // namespace tapestry

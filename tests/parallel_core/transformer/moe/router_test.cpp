#include "parallel_core/transformer/moe/router.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/ops/ops.h"
#include "autograd/tape/checkpoint.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/gradcheck.h"
#include "autograd/tape/recompute.h"
#include "autograd/tensor/error.h"
#include "parallel_core/random.h"
#include "parallel_core/transformer/moe/router_logits.h"
#include "tests/parallel_core/transformer/moe/router_testing.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;

TransformerConfig small_config() {
  TransformerConfig config;
  config.hidden_size = 6;
  config.init_method_std = 0.5;
  config.moe.num_experts = 4;
  return config;
}

void set_samples() { random_context() = {.seed = 7, .step = 3, .sample_ids = {4, 9}}; }

Tensor input(DType dtype = kFloat32) {
  return normal(0, 1, {10, 6}, kFloat32, RandomKey{5, 1, 0}).to(dtype);
}

TEST(TopKRouter, ParameterAndBuffers) {
  TransformerConfig config = small_config();
  config.moe.moe_router_enable_expert_bias = true;
  config.moe.balance_losses = {{"global_aux_loss", 0.1}};
  const TopKRouter router(config, 3, false);
  ASSERT_EQ(router.named_parameters().size(), 1U);
  const nn::Parameter& weight = *router.named_parameters().front().parameter;
  ASSERT_EQ(weight.logical().size(), 1U);
  EXPECT_EQ(weight.logical().front().name, "layers.2.moe.router.weight");
  EXPECT_EQ(weight.shape(), (Shape{4, 6}));
  EXPECT_FALSE(weight.flags().matmul);
  EXPECT_FALSE(weight.flags().expert);
  EXPECT_TRUE(weight.flags().decay);
  EXPECT_EQ(weight.flags().tp, nn::TensorParallel::kReplicated);
  EXPECT_THAT(testing::buffer_of(router, "expert_bias").to_vector<float>(),
              ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(testing::buffer_of(router, "previous_counts").dtype(), kInt64);
  EXPECT_TRUE(TopKRouter(small_config(), 1, false).named_buffers().empty());
}

TEST(TopKRouter, FinishStepLeavesCountsToTheNextStep) {
  TransformerConfig config = small_config();
  config.moe.moe_router_enable_expert_bias = true;
  config.moe.moe_router_bias_update_rate = 0.5;
  config.moe.balance_losses = {{"global_aux_loss", 0.1}};
  TopKRouter router(config, 1, false);
  router.finish_step({.tokens_per_expert = {4, 0, 2, 2}, .balance_counts = {3, 1, 4, 0}});
  EXPECT_THAT(testing::buffer_of(router, "expert_bias").to_vector<float>(),
              ElementsAre(-0.5F, 0.5F, 0, 0));
  EXPECT_THAT(testing::buffer_of(router, "previous_counts").to_vector<int64_t>(),
              ElementsAre(3, 1, 4, 0));
  EXPECT_THROW(router.finish_step({.tokens_per_expert = {4, 0, 2, 2}, .balance_counts = {3, 1, 4}}),
               ValueError);
}

TEST(TopKRouter, ComputesInFloat32WhateverItReads) {
  TransformerConfig config = small_config();
  config.moe.balance_losses = {{"aux_loss", 0.1}};
  TopKRouter router(config, 1, false);
  const GroupTokens tokens = testing::all_tokens(2, 5);
  const Tensor x = input(kBFloat16);
  const Routing half = router.forward(x, tokens);
  const Routing single = router.forward(x.to(kFloat32), tokens);
  EXPECT_EQ(half.logits.dtype(), kFloat32);
  EXPECT_EQ(half.gates.dtype(), kFloat32);
  EXPECT_EQ(half.aux_loss.dtype(), kFloat32);
  EXPECT_EQ(half.logits.to_vector<float>(), single.logits.to_vector<float>());
  // A weight that is stored in 16 bits is widened.
  router.to(kBFloat16);
  EXPECT_EQ(router.forward(x, tokens).logits.dtype(), kFloat32);
}

// Sequences that begin alike have equal tokens, whose gates must tie wherever they stand.
TEST(TopKRouter, EqualTokensHaveEqualGatesWhereverTheyStand) {
  for (const std::string function : {"softmax", "pre_softmax", "sigmoid", "sqrtsoftplus"}) {
    for (const int64_t experts : {4, 8, 60}) {
      for (const int64_t hidden : {6, 64, 768}) {
        TransformerConfig config = small_config();
        config.hidden_size = hidden;
        config.init_method_std = 1 / std::sqrt(static_cast<double>(hidden));
        config.moe.num_experts = experts;
        config.moe.moe_router_pre_softmax = function == "pre_softmax";
        config.moe.moe_router_score_function = function.ends_with("softmax") ? "softmax" : function;
        TopKRouter router(config, 1, false);
        const Tensor row = normal(0, 1, {1, hidden}, kFloat32, RandomKey{5, 1, 0});
        const auto alone = router.forward(row, testing::all_tokens(1, 1)).gates.to_vector<float>();
        for (const int64_t count : {2, 7, 64, 131, 1000}) {
          const Tensor rows = row.expand({count, hidden}).contiguous();
          const auto gates =
              router.forward(rows, testing::all_tokens(1, count)).gates.to_vector<float>();
          for (size_t i = 0; i < gates.size(); ++i) {
            ASSERT_EQ(gates[i], alone[i % 2]) << "token " << i / 2 << " of " << count << ", E "
                                              << experts << ", H " << hidden << ", " << function;
          }
        }
      }
    }
  }
}

TEST(RouterLogits, GradientsMatchDifferencesTwice) {
  const auto function = [](const TensorList& in) -> TensorList {
    return {router_logits(in[0], in[1])};
  };
  const Tensor x = normal(0, 1, {5, 3}, kFloat64, RandomKey{3, 1, 0}).set_requires_grad();
  const Tensor weight = normal(0, 1, {4, 3}, kFloat64, RandomKey{3, 2, 0}).set_requires_grad();
  const GradcheckResult once = gradcheck(function, {x, weight});
  EXPECT_TRUE(once) << once.message;
  const GradcheckResult twice = gradgradcheck(function, {x, weight});
  EXPECT_TRUE(twice) << twice.message;
}

TEST(RouterLogits, TheWeightsGradientIsAddedToItsMainGrad) {
  const Tensor x = normal(0, 1, {7, 6}, kFloat32, RandomKey{3, 1, 0});
  const Tensor weight = normal(0, 1, {4, 6}, kFloat32, RandomKey{3, 2, 0}).set_requires_grad();
  sum(square(router_logits(x, weight))).backward();
  const std::vector<float> expected = (weight.grad() + 1).to_vector<float>();
  weight.set_grad({});
  weight.set_main_grad(ones({4, 6}));
  sum(square(router_logits(x, weight))).backward();
  const auto found = weight.main_grad().to_vector<float>();
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 1e-4);
  }
}

TEST(TopKRouter, LearnsFrom16BitInputsAndWeights) {
  const auto gradient = [](DType dtype) {
    TopKRouter router(small_config(), 1, false);
    router.to(kBFloat16);  // rounded in both cases
    router.to(dtype);
    const Tensor x = input(kBFloat16).to(dtype).set_requires_grad();
    const Routing found = router.forward(x, testing::all_tokens(2, 5));
    sum(square(found.gates)).backward();
    EXPECT_EQ(x.grad().dtype(), dtype);
    EXPECT_EQ(router.parameters().front().grad().dtype(), dtype);
    TensorList both = {x.grad().to(kFloat32), router.parameters().front().grad().to(kFloat32)};
    return both;
  };
  const TensorList wide = gradient(kFloat32);
  const TensorList half = gradient(kBFloat16);
  for (size_t i = 0; i < 2; ++i) {
    const double size = max(abs(wide[i])).item();
    EXPECT_GT(size, 0.01);
    EXPECT_LE(max(abs(half[i] - wide[i])).item(), size / 256);  // rounded once
  }
}

TEST(RouterLogits, Refusals) {
  EXPECT_THROW(router_logits(zeros({2, 3}), zeros({4, 2})), ValueError);
  EXPECT_THROW(router_logits(zeros({3}), zeros({4, 3})), ValueError);
  EXPECT_THROW(router_logits(zeros({2, 3}), zeros({4, 3}, kFloat64)), TypeError);
  EXPECT_THROW(router_logits(zeros({2, 3}, kBFloat16), zeros({4, 3}, kBFloat16)), TypeError);
}

TEST(TopKRouter, NoTokensAreNoError) {
  TransformerConfig config = small_config();
  config.moe.balance_losses = {{"seq_aux_loss", 0.1}};
  config.moe.moe_z_loss_coeff = 0.1;
  config.moe.moe_expert_capacity_factor = 1;
  TopKRouter router(config, 1, false);
  const Routing found =
      router.forward(zeros({0, 6}).set_requires_grad(), testing::all_tokens(0, 5));
  EXPECT_EQ(found.gates.shape(), (Shape{0, 2}));
  EXPECT_EQ(found.aux_loss.item(), 0);
  (sum(found.gates) + found.aux_loss).backward();
  EXPECT_EQ(max(abs(router.parameters().front().grad())).item(), 0);
}

// -- what depends on the pass --------------------------------------------------------------------

TransformerConfig noisy_config() {
  TransformerConfig config = small_config();
  config.moe.moe_input_jitter_eps = 0.3;
  config.moe.moe_expert_capacity_factor = 0.7;
  config.moe.balance_losses = {{"aux_loss", 0.1}};
  return config;
}

TEST(Jitter, ActsInTrainingOnly) {
  set_samples();
  TransformerConfig config = noisy_config();
  TopKRouter noisy(config, 1, false);
  config.moe.moe_input_jitter_eps.reset();
  TopKRouter plain(config, 1, false);
  const GroupTokens tokens = testing::all_tokens(2, 5);
  const auto logits = [&](TopKRouter& router) {
    return router.forward(input(), tokens).logits.to_vector<float>();
  };
  EXPECT_NE(logits(noisy), logits(plain));
  EXPECT_EQ(logits(noisy), logits(noisy));
  noisy.eval();
  EXPECT_EQ(logits(noisy), logits(plain));
}

// Whatever the tokens are, all experts get about as many; the weight's gradient is that of logits.
TEST(ForcedBalance, ActsInTrainingOnly) {
  random_context() = {.seed = 7, .step = 3, .sample_ids = {4}};
  TransformerConfig config = small_config();
  TopKRouter plain(config, 1, false);
  config.moe.moe_router_force_load_balancing = true;
  TopKRouter forced(config, 1, false);
  const GroupTokens tokens = testing::all_tokens(1, 2000);
  const Tensor same = ones({2000, 6});
  EXPECT_THAT(plain.forward(same, tokens).tokens_per_expert,
              ::testing::UnorderedElementsAre(2000, 2000, 0, 0));
  const Routing found = forced.forward(same, tokens);
  EXPECT_THAT(found.tokens_per_expert,
              ::testing::Each(::testing::AllOf(::testing::Gt(900), ::testing::Lt(1100))));
  EXPECT_EQ(found.logits.to_vector<float>(),
            random_logits(zeros({2000, 4}), 0, tokens.numbers, 2000).to_vector<float>());
  sum(found.logits).backward();
  EXPECT_EQ(min(forced.parameters().front().grad()).item(), 2000);
  forced.eval();
  plain.eval();
  EXPECT_EQ(forced.forward(same, tokens).experts, plain.forward(same, tokens).experts);
}

// A recomputed layer decides as it did the first time, which drops too.
TEST(TopKRouter, ACheckpointDecidesTheSameAgain) {
  const auto gradient = [](bool recompute) {
    TopKRouter router(noisy_config(), 1, false);
    std::vector<std::vector<uint8_t>> kept;
    const auto loss = [&](const TensorList& in) {
      const Routing found = router.forward(in[0], testing::all_tokens(2, 5));
      kept.push_back(found.kept);
      std::vector<float> mask(found.kept.begin(), found.kept.end());
      return sum(square(found.gates) * tensor(mask, found.gates.shape())) + found.aux_loss;
    };
    const Tensor x = input().set_requires_grad();
    set_samples();
    const Tensor out = recompute ? checkpoint(loss, {x}) : loss({x});
    random_context().sample_ids = {1, 2, 3};  // of a later micro-batch
    out.backward();
    EXPECT_EQ(kept.size(), recompute ? 2U : 1U);
    EXPECT_EQ(kept.front(), kept.back());
    EXPECT_THAT(kept.front(), ::testing::Contains(0));
    return std::pair(x.grad().to_vector<float>(),
                     router.parameters().front().grad().to_vector<float>());
  };
  EXPECT_EQ(gradient(true), gradient(false));
}

TEST(TopKRouter, ValuesThatAreMadeAgainAreTheSame) {
  const auto gradient = [](bool recompute) {
    TopKRouter router(noisy_config(), 1, false);
    const Tensor x = input().set_requires_grad();
    set_samples();
    RecomputedValues values;
    Tensor loss;
    {
      const RecomputeScope scope(recompute ? &values : nullptr);
      const Routing found = router.forward(x, testing::all_tokens(2, 5));
      loss = sum(square(found.gates)) + found.aux_loss;
    }
    values.keep(loss);
    EXPECT_EQ(values.drop() > 0, recompute);
    random_context().sample_ids = {1, 2, 3};
    loss.backward();
    return std::pair(x.grad().to_vector<float>(),
                     router.parameters().front().grad().to_vector<float>());
  };
  EXPECT_EQ(gradient(true), gradient(false));
}

// -- what is refused -----------------------------------------------------------------------------

TEST(TopKRouter, RefusesBadConfigurations) {
  const auto refused = [](const std::function<void(MoEConfig&)>& change, const char* why) {
    TransformerConfig config = small_config();
    change(config.moe);
    try {
      const TopKRouter router(config, 1, false);
      ADD_FAILURE() << "was not refused: " << why;
    } catch (const ValueError& error) {
      EXPECT_THAT(error.what(), Says(why));
    }
  };
  refused([](MoEConfig& c) { c.moe_router_topk = 5; },
          "moe_router_topk ... must lie in ... [1, 4]");
  refused([](MoEConfig& c) { c.moe_router_topk = 1; }, "has no gradient");
  refused([](MoEConfig& c) { c.moe_expert_capacity_factor = 0; },
          "moe_expert_capacity_factor ... must be above ... 0, ... 0");
  refused([](MoEConfig& c) { c.moe_input_jitter_eps = 1; }, "moe_input_jitter_eps ... must lie in");
  refused([](MoEConfig& c) { c.moe_z_loss_coeff = -1; },
          "moe_z_loss_coeff ... must not be negative");
  refused([](MoEConfig& c) { c.moe_token_drop_policy = "all"; }, "moe_token_drop_policy 'all'");
  refused([](MoEConfig& c) { c.balance_losses = {{"comm", 0.1}}; }, "'comm' is not known");
  refused(
      [](MoEConfig& c) {
        c.balance_losses = {{"aux_loss", -0.1}};
      },
      "aux_loss ... not be negative, got ... -0.1");
  refused([](MoEConfig& c) { c.balance_losses = {{"device", 0.1}}; }, "needs expert_group_size");
}

TEST(TopKRouter, RefusesTokensThatDoNotFit) {
  TopKRouter router(small_config(), 1, false);
  const auto refused = [&](const Tensor& x, const GroupTokens& tokens, const char* why) {
    try {
      router.forward(x, tokens);
      ADD_FAILURE() << "was not refused: " << why;
    } catch (const ValueError& error) {
      EXPECT_THAT(error.what(), Says(why));
    }
  };
  GroupTokens tokens = testing::all_tokens(2, 5);
  refused(zeros({10, 7}), tokens, "x must be [10, 6]");
  refused(zeros({9, 6}), tokens, "a row for each token, got float32 [9, 6]");
  refused(zeros({2, 5, 6}), tokens, "x must be [10, 6]");
  tokens.total = 11;
  refused(input(), tokens, "2 rows of 5 tokens are not 11");
  tokens = testing::all_tokens(2, 5);
  tokens.numbers[3] = 10;
  refused(input(), tokens, "a token has number 10");
  refused(zeros({4, 6}), testing::all_tokens(2, 5).slice(0, 4), "but its ranks have 4");
}

TEST(GroupTokens, NumbersFollowTheLayout) {
  const SequencePart part = {.runs = {{0, 2}, {6, 1}}, .length = 8};
  const GroupTokens rows_first = group_tokens(nullptr, part, 2, 3, false);
  EXPECT_THAT(rows_first.numbers, ElementsAre(0, 1, 6, 8, 9, 14));
  EXPECT_EQ(rows_first.total, 16);
  EXPECT_THAT(group_tokens(nullptr, part, 2, 3, true).numbers, ElementsAre(0, 8, 1, 9, 6, 14));
  EXPECT_THAT(group_tokens(nullptr, {}, 2, 2, true).numbers, ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(rows_first.slice(2, 4).numbers, ElementsAre(6, 8));
  EXPECT_THROW(rows_first.slice(2, 7), ValueError);
  EXPECT_THROW(group_tokens(nullptr, part, 2, 4, false), ValueError);
}

}  // namespace
}  // namespace tapestry

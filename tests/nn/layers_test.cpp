// Layers, containers and losses: what they compute, hold, print and refuse.
#include <cmath>

#include "autograd/ops/ops.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/rank_context.h"
#include "nn/layers/activation.h"
#include "nn/layers/container.h"
#include "nn/layers/embedding.h"
#include "nn/layers/linear.h"
#include "nn/layers/norm.h"
#include "nn/losses/losses.h"
#include "tests/nn/nn_test_util.h"

namespace tapestry::nn {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::Pointwise;

void assign(const Tensor& t, const Tensor& source) {
  const NoGradGuard guard;
  copy_(t, source);
}

TEST(Linear, ComputesXTimesWTransposedPlusB) {
  Linear layer(3, 2);
  assign(layer.weight(), matrix(2, 3, {1, 2, 3, 4, 5, 6}));
  assign(*layer.bias(), tensor({10, 20}));
  EXPECT_THAT(values(layer(matrix(2, 3, {1, 0, 0, 0, 1, 1}))), ElementsAre(11, 24, 15, 31));
  EXPECT_EQ(layer(zeros({4, 5, 3})).shape(), (Shape{4, 5, 2}));
  sum(layer(matrix(1, 3, {1, 2, 3}))).backward();
  EXPECT_THAT(values(layer.weight().grad()), ElementsAre(1, 2, 3, 1, 2, 3));
  EXPECT_THAT(values(layer.bias()->grad()), ElementsAre(1, 1));
  expect_throws<ValueError>([&] { layer(zeros({2, 4})); }, {"[2, 4]", "[2, 3]"});
}

TEST(Linear, StartsUniformAndDecaysOnlyItsWeight) {
  Linear layer(100, 50);
  float largest = 0;
  for (const float v : values(layer.weight())) {
    largest = std::max(largest, std::abs(v));
  }
  EXPECT_LE(largest, 0.1F);
  EXPECT_GT(largest, 0.099F);
  for (const float v : values(*layer.bias())) {
    EXPECT_LE(std::abs(v), 0.1F);
  }
  EXPECT_TRUE(layer.weight().flags().decay);
  EXPECT_FALSE(layer.bias()->flags().decay);
  EXPECT_EQ(printed<Module>(layer), "Linear(in=100, out=50, bias)\n");
}

TEST(Linear, WithoutBiasAndInOtherDtypes) {
  Linear layer(4, 2, {.bias = false, .dtype = kFloat64});
  EXPECT_EQ(layer.bias(), nullptr);
  EXPECT_EQ(layer.weight().dtype(), kFloat64);
  EXPECT_EQ(layer.parameters().size(), 1U);
  EXPECT_EQ(layer.extra_repr(), "in=4, out=2");
  EXPECT_THAT(values(layer(zeros({3, 4}, kFloat64))), Each(0));
}

TEST(Linear, IsMadeAgainBySeedingTheRank) {
  manual_seed(11);
  const Linear a(4, 4);
  const Linear other(4, 4);
  manual_seed(11);
  const Linear b(4, 4);
  EXPECT_EQ(values(a.weight()), values(b.weight()));
  EXPECT_NE(values(a.weight()), values(other.weight()));
}

TEST(Embedding, LooksUpRows) {
  Embedding table(3, 2);
  assign(table.weight(), matrix(3, 2, {0, 1, 10, 11, 20, 21}));
  const Tensor ids = tensor(std::vector<int64_t>{2, 0, 2}, {1, 3});
  const Tensor y = table(ids);
  EXPECT_EQ(y.shape(), (Shape{1, 3, 2}));
  EXPECT_THAT(values(y), ElementsAre(20, 21, 0, 1, 20, 21));
  sum(y).backward();
  EXPECT_THAT(values(table.weight().grad()), ElementsAre(1, 1, 0, 0, 2, 2));
  EXPECT_EQ(printed<Module>(table), "Embedding(3, 2)\n");
  expect_throws<IndexError>([&] { table(tensor(std::vector<int32_t>{3}, {1})); }, {"3"});
  expect_throws<IndexError>([&] { table(tensor(std::vector<int64_t>{-1}, {1})); }, {"-1"});
}

TEST(LayerNorm, NormalizesTheLastAxis) {
  LayerNorm norm(2, {.eps = 0});
  EXPECT_THAT(values(norm(matrix(2, 2, {1, 3, -4, 4}))),
              Pointwise(FloatNear(1e-6F), {-1.0F, 1.0F, -1.0F, 1.0F}));
  const auto parameters = norm.named_parameters();
  ASSERT_EQ(parameters.size(), 2U);
  EXPECT_EQ(parameters[0].name, "weight");
  EXPECT_EQ(parameters[1].name, "bias");
  EXPECT_THAT(values(*parameters[0].parameter), Each(1));
  EXPECT_THAT(values(*parameters[1].parameter), Each(0));
  EXPECT_FALSE(parameters[0].parameter->flags().decay);
  EXPECT_FALSE(parameters[1].parameter->flags().decay);
  assign(*parameters[0].parameter, tensor({2, 3}));
  assign(*parameters[1].parameter, tensor({10, 20}));
  EXPECT_THAT(values(norm(matrix(1, 2, {1, 3}))), Pointwise(FloatNear(1e-5F), {8.0F, 23.0F}));
  EXPECT_EQ(printed<Module>(norm), "LayerNorm(2, eps=0)\n");
  expect_throws<ValueError>([&] { norm(zeros({2, 3})); }, {"[2]"});
}

TEST(LayerNorm, UsesEpsAndMayLackItsBias) {
  LayerNorm norm(2, {.eps = 3, .bias = false});
  EXPECT_EQ(norm.parameters().size(), 1U);
  EXPECT_THAT(values(norm(matrix(1, 2, {1, 3}))), Pointwise(FloatNear(1e-6F), {-0.5F, 0.5F}));
}

TEST(RMSNorm, DividesByTheRootMeanSquare) {
  RMSNorm norm(2, {.eps = 0});
  const float root = std::sqrt(12.5F);
  EXPECT_THAT(values(norm(matrix(1, 2, {3, 4}))),
              Pointwise(FloatNear(1e-6F), {3 / root, 4 / root}));
  ASSERT_EQ(norm.parameters().size(), 1U);
  EXPECT_FALSE(norm.named_parameters()[0].parameter->flags().decay);
  EXPECT_EQ(norm.type_name(), "RMSNorm");
  EXPECT_EQ(RMSNorm(4, {.eps = 1e-6}).extra_repr(), "4, eps=1e-06");
  expect_throws<ValueError>([&] { norm(zeros({2, 3})); }, {"[2]"});
}

TEST(Dropout, ActsOnlyInTraining) {
  manual_seed(3);
  Dropout dropout(0.25);
  const Tensor x = ones({100, 100});
  const std::vector<float> y = values(dropout(x));
  double kept = 0;
  for (const float v : y) {
    ASSERT_TRUE(v == 0 || std::abs(v - 4.0F / 3) < 1e-6F) << v;
    kept += v != 0 ? 1 : 0;
  }
  EXPECT_NEAR(kept / 1e4, 0.75, 0.02);  // standard deviation 0.0043
  EXPECT_NE(values(dropout(x)), y);     // the generator moves on
  manual_seed(3);
  EXPECT_EQ(values(dropout(x)), y);
  dropout.eval();
  EXPECT_THAT(values(dropout(x)), Each(1));
  EXPECT_EQ(printed<Module>(dropout), "Dropout(p=0.25)\n");
}

TEST(Dropout, TakesProbabilitiesOnly) {
  EXPECT_THAT(values(Dropout(1)(ones({4}))), Each(0));
  EXPECT_THAT(values(Dropout(0)(ones({4}))), Each(1));
  for (const double p : {-0.1, 1.1, std::nan("")}) {
    expect_throws<ValueError>([&] { Dropout{p}; }, {"Dropout", "[0, 1]", concat(p)});
  }
}

TEST(Activations, CallTheirFunctions) {
  const Tensor x = linspace(-3, 3, 13);
  EXPECT_EQ(values(ReLU()(x)), values(relu(x)));
  EXPECT_EQ(values(GELU()(x)), values(gelu(x)));
  EXPECT_EQ(values(GELU(true)(x)), values(gelu_tanh(x)));
  EXPECT_NE(values(GELU(true)(x)), values(gelu(x)));
  EXPECT_EQ(values(SiLU()(x)), values(silu(x)));
  EXPECT_EQ(values(Tanh()(x)), values(tanh(x)));
  EXPECT_EQ(values(Sigmoid()(x)), values(sigmoid(x)));
  EXPECT_EQ(printed<Module>(GELU()), "GELU\n");
  EXPECT_EQ(printed<Module>(GELU(true)), "GELU(tanh)\n");
  EXPECT_EQ(printed<Module>(SiLU()), "SiLU\n");
}

TEST(Sequential, RunsItsModulesInOrder) {
  Sequential net(std::make_unique<Linear>(2, 3), std::make_unique<ReLU>(),
                 std::make_unique<Linear>(3, 1));
  const Tensor x = matrix(2, 2, {1, 2, 3, 4});
  EXPECT_EQ(values(net(x)), values(net[2](relu(net[0](x)))));
  EXPECT_EQ(printed<Module>(net),
            "Sequential\n"
            "  (0): Linear(in=2, out=3, bias)\n"
            "  (1): ReLU\n"
            "  (2): Linear(in=3, out=1, bias)\n");
  EXPECT_TRUE(net.state_dict().contains("2.weight"));
  EXPECT_EQ(net.size(), 3U);
  expect_throws<IndexError>([&] { net[3]; }, {"3 of 3"});
  expect_throws<ValueError>([&] { net.append(nullptr); }, {"null"});
  EXPECT_EQ(net.size(), 3U);
  net.append(std::make_unique<Tanh>());
  EXPECT_EQ(values(net(x)), values(tanh(net[2](relu(net[0](x))))));
  Sequential empty_net;
  EXPECT_EQ(values(empty_net(x)), values(x));
}

TEST(Sequential, RunsTheHooksOfItsModules) {
  Sequential net(std::make_unique<ReLU>());
  net[0].register_forward_hook([](UnaryModule&, const Tensor&, const Tensor& y) { return y + 1; });
  EXPECT_THAT(values(net(tensor({-1, 2}))), ElementsAre(1, 3));
}

TEST(ModuleList, NumbersItsModules) {
  ModuleList list;
  auto& first = list.append<Linear>(2, 2);
  list.append<Dropout>(0.1);
  EXPECT_EQ(&list[0], &first);
  EXPECT_EQ(list.size(), 2U);
  EXPECT_TRUE(list.state_dict().contains("0.bias"));
  list.eval();
  EXPECT_FALSE(list[1].is_training());
  expect_throws<IndexError>([&] { list[2]; }, {"2 of 2"});
}

TEST(Losses, CallTheirFunctions) {
  const Tensor logits = matrix(2, 3, {1, 2, 3, 1, 1, 1});
  const Tensor labels = tensor(std::vector<int64_t>{2, 0}, {2});
  const double first = -std::log(std::exp(3.0) / (std::exp(1.0) + std::exp(2.0) + std::exp(3.0)));
  EXPECT_NEAR(CrossEntropyLoss()(logits, labels).item(), (first + std::log(3.0)) / 2, 1e-6);
  EXPECT_NEAR(CrossEntropyLoss({.ignore_index = 0})(logits, labels).item(), first, 1e-6);
  EXPECT_NEAR(CrossEntropyLoss({.reduction = Reduction::kSum})(logits, labels).item(),
              first + std::log(3.0), 1e-6);
  EXPECT_NEAR(NLLLoss()(log_softmax(logits, -1), labels).item(), (first + std::log(3.0)) / 2, 1e-6);
  EXPECT_NEAR(NLLLoss({.ignore_index = 0})(log_softmax(logits, -1), labels).item(), first, 1e-6);
  EXPECT_EQ(MSELoss()(tensor({1, 2}), tensor({3, 5})).item(), 6.5);
  EXPECT_EQ(MSELoss(Reduction::kSum)(tensor({1, 2}), tensor({3, 5})).item(), 13);
  EXPECT_NEAR(BCEWithLogitsLoss()(tensor({0, 0}), tensor({1, 0})).item(), std::log(2.0), 1e-6);
  EXPECT_NEAR(
      BCEWithLogitsLoss(tensor({3}), Reduction::kSum)(tensor({0, 0}), tensor({1, 0})).item(),
      4 * std::log(2.0), 1e-6);
  EXPECT_EQ(MSELoss().type_name(), "MSELoss");
  expect_throws<IndexError>(
      [&] {
        CrossEntropyLoss()(logits, tensor(std::vector<int64_t>{3, 0}, {2}));
      },
      {"3"});
  expect_throws<ValueError>([&] { MSELoss()(zeros({2}), zeros({3})); }, {"[2]", "[3]"});
}

}  // namespace
}  // namespace tapestry::nn

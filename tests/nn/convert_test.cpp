// Module::to, ModuleDict and the losses of regression.
#include <cmath>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/reduction.h"
#include "nn/layers/container.h"
#include "nn/layers/linear.h"
#include "nn/losses/losses.h"
#include "tests/nn/nn_test_util.h"

namespace tapestry::nn {
namespace {

using ::testing::ElementsAre;

class WithBuffers final : public Module {
 public:
  WithBuffers()
      : weight(register_parameter("weight", tensor({1, 1e-3F}))),
        mean(register_buffer("mean", tensor({0.5F}))),
        count(register_buffer("count", zeros({1}, kInt64))),
        child(register_module<Linear>("child", 2, 1)) {}
  std::string type_name() const override { return "WithBuffers"; }

  Parameter& weight;
  Tensor mean;
  Tensor count;
  Linear& child;
};

TEST(ModuleTo, ConvertsWhatIsFloatingUnderEveryHandle) {
  WithBuffers module;
  const Tensor handle = module.weight;
  sum(handle * 3).backward();
  module.to(kFloat64);
  EXPECT_EQ(handle.dtype(), kFloat64);
  EXPECT_EQ(module.mean.dtype(), kFloat64);
  EXPECT_EQ(module.count.dtype(), kInt64);
  EXPECT_EQ(module.child.weight().dtype(), kFloat64);
  EXPECT_EQ(handle.at({1}), static_cast<double>(1e-3F));
  EXPECT_EQ(handle.grad().dtype(), kFloat64);
  EXPECT_EQ(handle.grad().at({1}), 3);
  EXPECT_TRUE(handle.requires_grad());
  EXPECT_EQ(module.state_dict().at("child.bias").dtype(), kFloat64);
  // Training goes on in the new dtype.
  sum(handle * 2 + sum(module.child(ones({1, 2}, kFloat64)))).backward();
  EXPECT_EQ(handle.grad().at({0}), 5);
  EXPECT_EQ(module.child.weight().grad().dtype(), kFloat64);
  module.to(kBFloat16);
  EXPECT_EQ(handle.dtype(), kBFloat16);
  EXPECT_EQ(module.child(ones({1, 2}, kBFloat16)).dtype(), kBFloat16);
}

TEST(ModuleTo, AGraphOfTheOldValuesIsRefused) {
  Linear layer(2, 1);
  const Tensor x = ones({1, 2});
  x.set_requires_grad();
  const Tensor y = sum(layer(x));
  layer.to(kFloat64);
  expect_throws<RuntimeError>([&] { y.backward(); }, {"linear"});
}

TEST(ModuleTo, MistakesAreNamed) {
  Linear layer(2, 1);
  expect_throws<TypeError>([&] { layer.to(kInt64); }, {"Module::to", "int64"});
  layer.bias()->set_main_grad(zeros({1}));
  expect_throws<RuntimeError>([&] { layer.to(kFloat64); }, {"'bias' has a main_grad"});
  EXPECT_EQ(layer.weight().dtype(), kFloat32);
}

TEST(ModuleDict, HoldsModulesByName) {
  ModuleDict dict;
  Linear& first = dict.insert<Linear>("first", 2, 3);
  dict.insert<Linear>("a_second", 3, 1, LinearOptions{.bias = false});
  EXPECT_EQ(dict.size(), 2U);
  EXPECT_EQ(&dict["first"], &first);
  EXPECT_TRUE(dict.contains("a_second"));
  EXPECT_FALSE(dict.contains("third"));
  EXPECT_THAT(dict.keys(), ElementsAre("first", "a_second"));
  EXPECT_EQ(dict.named_parameters().back().name, "a_second.weight");
  expect_throws<ValueError>([&] { dict["third"]; }, {"'third'", "first, a_second"});
  expect_throws<ValueError>([&] { dict.insert<Linear>("first", 1, 1); }, {"is taken"});
  expect_throws<ValueError>([] { ModuleDict()["x"]; }, {"no modules"});
}

TEST(Losses, OfRegressionAndDistributions) {
  const Tensor a = tensor({1, -2, 0.25F});
  const Tensor b = tensor({0.5F, 1, 0});
  EXPECT_FLOAT_EQ(static_cast<float>(L1Loss()(a, b).item()), 1.25F);
  EXPECT_EQ(L1Loss(Reduction::kSum)(a, b).item(), 3.75);
  EXPECT_EQ(SmoothL1Loss({.reduction = Reduction::kSum, .beta = 0.5})(a, b).item(), 3.0625);
  const Tensor p = tensor({0.25F, 0.75F}).view({1, 2});
  const double expected = 0.25 * std::log(0.5) + 0.75 * std::log(1.5);
  EXPECT_NEAR(KLDivLoss({.batch_mean = true})(log(full({1, 2}, 0.5)), p).item(), expected, 1e-6);
  EXPECT_NEAR(
      KLDivLoss({.reduction = Reduction::kSum, .log_target = true})(log(full({1, 2}, 0.5)), log(p))
          .item(),
      expected, 1e-6);
  EXPECT_EQ(printed(SmoothL1Loss()), "SmoothL1Loss(beta=1)\n");
}

}  // namespace
}  // namespace tapestry::nn

#include "autograd/ops/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/random.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "tests/autograd/ops/expect_close.h"
#include "tests/autograd/ops/same_function.h"

namespace tapestry {
namespace {

Tensor input(const Shape& shape, uint64_t stream) {
  return normal(0, 1.5, shape, kFloat64, RandomKey{1, stream, 0});
}

TEST(Activation, FusedFormsEqualTheirTwins) {
  const Tensor x = input({5, 8}, 1);
  expect_same_function(gelu, composed_gelu, x);
  expect_same_function(gelu_tanh, composed_gelu_tanh, x);
  expect_same_function(silu, composed_silu, x);
  expect_same_function([](const Tensor& t) { return swiglu(t); },
                       [](const Tensor& t) { return composed_swiglu(t); }, x);
  const Tensor up = input({5, 8}, 2);
  expect_same_function([&](const Tensor& t) { return swiglu(t, up); },
                       [&](const Tensor& t) { return composed_swiglu(t, up); }, x);
  expect_same_function([&](const Tensor& t) { return swiglu(up, t); },
                       [&](const Tensor& t) { return composed_swiglu(up, t); }, x);
}

TEST(Activation, FormsWithBiasEqualTheirTwins) {
  const Tensor x = input({5, 8}, 1);
  const Tensor bias = input({8}, 2);
  const std::pair<Tensor (*)(const Tensor&, const Tensor&),
                  Tensor (*)(const Tensor&, const Tensor&)>
      forms[] = {{bias_gelu, composed_bias_gelu},
                 {bias_gelu_tanh, composed_bias_gelu_tanh},
                 {bias_silu, composed_bias_silu}};
  for (const auto& [fused, twin] : forms) {
    expect_same_function([&, f = fused](const Tensor& t) { return f(t, bias); },
                         [&, f = twin](const Tensor& t) { return f(t, bias); }, x);
    expect_same_function([&, f = fused](const Tensor& t) { return f(x, t); },
                         [&, f = twin](const Tensor& t) { return f(x, t); }, bias);
    // A 16-bit x with a float32 bias: the sum is not rounded before the function.
    const Tensor half = x.to(kBFloat16);
    const Tensor y = fused(half, bias.to(kFloat32));
    EXPECT_EQ(y.dtype(), kBFloat16);
    expect_close(y, twin(half, bias.to(kFloat32)), 1e-6);
  }
}

TEST(Activation, ABiasGradientGoesStraightIntoMainGrad) {
  const Tensor x = input({40, 8}, 1).to(kBFloat16);
  const Tensor bias = input({8}, 2).to(kFloat32).set_requires_grad();
  const Tensor expected = grad(sum(bias_gelu(x, bias).to(kFloat32)), {bias})[0];
  bias.set_main_grad(ones({8}));
  sum(bias_gelu(x, bias).to(kFloat32)).backward();
  expect_close(sub(bias.main_grad(), 1), expected, 1e-6);
}

TEST(Activation, KnownValues) {
  const Tensor x = tensor<double>({-2.0, 0.0, 1.0}, {3});
  expect_close(relu(x), tensor<double>({0, 0, 1}, {3}), 0);
  expect_close(squared_relu(mul(x, 3)), tensor<double>({0, 0, 9}, {3}), 0);
  expect_close(gelu(x), tensor<double>({-0.04550026389635842, 0, 0.8413447460685429}, {3}), 1e-15);
  expect_close(gelu_tanh(x), tensor<double>({-0.04540230591222494, 0, 0.8411919906082768}, {3}),
               1e-15);
  expect_close(silu(x), tensor<double>({-0.23840584404423515, 0, 0.7310585786300049}, {3}), 1e-15);
  expect_close(softplus(x),
               tensor<double>({0.12692801104297263, 0.6931471805599453, 1.3132616875182228}, {3}),
               1e-15);
}

TEST(Activation, ReluAtZeroHasGradientZeroAndPassesNan) {
  const Tensor x = tensor<double>({0.0, -0.0, 2.0, std::numeric_limits<double>::quiet_NaN()}, {4});
  const Tensor dx = gradient_of(relu, x, ones({4}, kFloat64));
  EXPECT_EQ(dx.at({0}), 0);
  EXPECT_EQ(dx.at({1}), 0);
  EXPECT_EQ(dx.at({2}), 1);
  EXPECT_TRUE(std::isnan(relu(x).at({3})));
}

TEST(Activation, ReluTakesIntegers) {
  EXPECT_EQ(relu(tensor<int64_t>({-3, 4}, {2})).to_vector<int64_t>(), (std::vector<int64_t>{0, 4}));
}

TEST(Activation, SoftplusKeepsRelativeAccuracy) {
  for (const DType dtype : {kFloat32, kFloat64}) {
    const double epsilon = dtype == kFloat32 ? 3e-7 : 1e-15;
    for (const double v : {-80.0, -30.0, -8.0, -1e-3, 1e-3, 8.0, 80.0, 5000.0}) {
      const double expected = v > 0 ? v + std::log1p(std::exp(-v)) : std::log1p(std::exp(v));
      EXPECT_NEAR(softplus(scalar(v, dtype)).item(), expected, epsilon * expected) << v;
    }
    EXPECT_EQ(softplus(scalar(-5000, dtype)).item(), 0);
  }
  const Tensor zero = scalar(0, kFloat64).set_requires_grad();
  EXPECT_DOUBLE_EQ(grad(softplus(zero), {zero})[0].item(), 0.5);
}

TEST(Activation, ExtremeArgumentsStayFinite) {
  const Tensor x = tensor<float>({-1e4F, -90.0F, 90.0F, 1e4F}, {4});
  for (const auto& f : {relu, gelu, gelu_tanh, silu, softplus}) {
    const Tensor leaf = x.clone().set_requires_grad();
    const Tensor y = f(leaf);
    const Tensor dx = grad(y, {leaf}, ones({4}))[0];
    for (int64_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(std::isfinite(y.at({i})) && std::isfinite(dx.at({i})));
      EXPECT_NEAR(dx.at({i}), i < 2 ? 0 : 1, 1e-6);
    }
  }
}

TEST(Activation, SwigluReadsHalvesOfAWiderMatrixWithoutCopies) {
  const Tensor wide = input({4, 3, 10}, 3);
  const Tensor gate = slice(wide, -1, 0, 5);
  const Tensor up = slice(wide, -1, 5, 10);
  const int64_t before = memory_stats().allocations;
  const Tensor y = swiglu(gate, up);
  EXPECT_EQ(memory_stats().allocations, before + 1) << "only the result is allocated";
  expect_close(y, swiglu(wide), 0);
  // A layout that is no matrix of rows.
  expect_close(swiglu(gate.permute({2, 0, 1}), up.permute({2, 0, 1})), y.permute({2, 0, 1}), 0);
}

TEST(Activation, SwigluKeepsOnlyItsInput) {
  const Tensor x = zeros({64, 256}).set_requires_grad();
  const int64_t before = memory_stats().current_bytes;
  const Tensor y = swiglu(x);
  EXPECT_LE(memory_stats().current_bytes - before, CachingAllocator::rounded_size(64 * 128 * 4));
  EXPECT_EQ(y.shape(), (Shape{64, 128}));
}

}  // namespace
}  // namespace tapestry

#include "autograd/ops/softmax.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/random.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/ops/expect_close.h"
#include "tests/autograd/ops/same_function.h"

namespace tapestry {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

Tensor input(const Shape& shape, uint64_t stream = 0) {
  return normal(0, 2, shape, kFloat64, RandomKey{2, stream, 0});
}

TEST(Softmax, FusedFormsEqualTheirTwins) {
  const Tensor x = input({3, 4, 5});
  for (const int64_t axis : {0, 1, 2, -1, -2}) {
    expect_same_function([=](const Tensor& t) { return softmax(t, axis); },
                         [=](const Tensor& t) { return composed_softmax(t, axis); }, x);
    expect_same_function([=](const Tensor& t) { return log_softmax(t, axis); },
                         [=](const Tensor& t) { return composed_log_softmax(t, axis); }, x);
    expect_same_function([=](const Tensor& t) { return logsumexp(t, {axis}); },
                         [=](const Tensor& t) { return composed_logsumexp(t, {axis}); }, x);
  }
  expect_same_function(
      [](const Tensor& t) {
        return logsumexp(t, {0, -1}, true);
      },
      [](const Tensor& t) {
        return composed_logsumexp(t, {0, -1}, true);
      },
      x);
}

TEST(Softmax, RowsAddUpToOne) {
  expect_close(sum(softmax(input({6, 9}), -1), {-1}), ones({6}, kFloat64), 1e-15);
  expect_close(softmax(scalar(3.0, kFloat64), -1), scalar(1.0, kFloat64), 0);
}

TEST(Softmax, LargeArgumentsDoNotOverflow) {
  const Tensor x = tensor<float>({1000, 999, -1000}, {3});
  const double p = 1 / (1 + std::exp(-1.0));
  expect_close(softmax(x, 0), tensor<double>({p, 1 - p, 0}, {3}), 1e-7);
  expect_close(log_softmax(x, 0),
               tensor<double>({std::log(p), std::log(p) - 1, std::log(p) - 2000}, {3}), 1e-7);
  EXPECT_NEAR(logsumexp(x, {0}).item(), 1000 - std::log(p), 1e-4);
}

TEST(Softmax, MinusInfinityCountsAsAbsent) {
  const Tensor x = tensor<double>({1, -kInf, 2, -kInf}, {4});
  const Tensor present = tensor<double>({1, 2}, {2});
  EXPECT_DOUBLE_EQ(logsumexp(x, {0}).item(), logsumexp(present, {0}).item());
  EXPECT_EQ(softmax(x, 0).at({1}), 0);
  EXPECT_DOUBLE_EQ(softmax(x, 0).at({2}), softmax(present, 0).at({1}));
  EXPECT_EQ(log_softmax(x, 0).at({1}), -kInf);
  const Tensor dx = gradient_of([](const Tensor& t) { return softmax(t, 0); }, x, input({4}));
  EXPECT_EQ(dx.at({1}), 0);
  EXPECT_TRUE(std::isfinite(dx.at({0})));
}

TEST(Softmax, NothingButMinusInfinity) {
  const Tensor x = full({2, 3}, -kInf, kFloat64);
  EXPECT_TRUE(std::isnan(softmax(x, -1).at({0, 0})));
  expect_close(logsumexp(x, {1}), full({2}, -kInf, kFloat64), 0);
  const auto fn = [](const Tensor& t) { return logsumexp(t, {1}); };
  expect_close(gradient_of(fn, x, ones({2}, kFloat64)), zeros({2, 3}, kFloat64), 0);
  EXPECT_EQ(logsumexp(zeros({0}), {}).item(), -kInf);
}

TEST(Softmax, SixteenBitResultsAreRoundedOnce) {
  const Tensor x = input({4, 33}).to(kBFloat16);
  const Tensor wide = x.to(kFloat32);
  expect_close(softmax(x, -1), softmax(wide, -1).to(kBFloat16), 0);
  expect_close(logsumexp(x, {-1}), logsumexp(wide, {-1}).to(kBFloat16), 0);
  EXPECT_EQ(softmax(x, -1).dtype(), kBFloat16);
}

}  // namespace
}  // namespace tapestry

// The dtype of a tensor with a C++ number follows from the number's type, never from its value.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "autograd/ops/ops.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;

Tensor integers(DType dtype) { return arange(1, 4, 1, dtype); }  // 1, 2, 3

TEST(ScalarDtype, FloatingNumbersMakeIntegersFloat) {
  for (const DType dtype : {kInt32, kInt64}) {
    const Tensor x = integers(dtype);
    for (const double s : {1.0, 1.5, -2.0, 0.0}) {
      const std::vector<Tensor> results = {x + s,     s + x,     x - s,       s - x,
                                           x * s,     s * x,     x / s,       s / x,
                                           pow(x, s), pow(s, x), clamp(x, s), clamp(x, -9, s)};
      for (size_t i = 0; i < results.size(); ++i) {
        EXPECT_EQ(results[i].dtype(), kFloat32) << "result " << i << " for " << s;
      }
    }
    EXPECT_EQ((x * 2.0F).dtype(), kFloat32);
    EXPECT_THAT((x * 1.0).to_vector<float>(), ElementsAre(1, 2, 3));
    EXPECT_THAT((x * 1.5).to_vector<float>(), ElementsAre(1.5, 3, 4.5));
    EXPECT_THAT(clamp(x, 1.5, 2.5).to_vector<float>(), ElementsAre(1.5, 2, 2.5));
  }
}

TEST(ScalarDtype, IntegersKeepIntegers) {
  for (const DType dtype : {kInt32, kInt64}) {
    const Tensor x = integers(dtype);
    const int64_t wide = 2;
    const std::vector<Tensor> results = {x + 2,     2 + x,     x - 2,       2 - x,
                                         x * 2,     2 * x,     x * wide,    x * 2U,
                                         pow(x, 2), pow(2, x), clamp(x, 1), clamp(x, 1, 2)};
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_EQ(results[i].dtype(), dtype) << "result " << i;
    }
    EXPECT_THAT((2 - x).to_vector<int64_t>(), ElementsAre(1, 0, -1));
    EXPECT_THAT(clamp(x, 2).to_vector<int64_t>(), ElementsAre(2, 2, 3));
    EXPECT_EQ((x / 2).dtype(), kFloat32);  // true division
  }
}

// A double has 53 bits.
TEST(ScalarDtype, LongIntegersAreExact) {
  const int64_t big = (int64_t{1} << 53) + 1;
  const Tensor zero = tensor(std::vector<int64_t>{0}, {1});
  const Tensor two = tensor(std::vector<int64_t>{big, big - 1}, {2});
  const auto numbers = [](const Tensor& x) { return x.to_vector<int64_t>(); };
  EXPECT_THAT(numbers(zero + big), ElementsAre(big));
  EXPECT_THAT(numbers(big + zero), ElementsAre(big));
  EXPECT_THAT(numbers(zero - big), ElementsAre(-big));
  EXPECT_THAT(numbers(big - two), ElementsAre(0, 1));
  EXPECT_THAT(numbers(two - two.at({0})), ElementsAre(0, -1));
  EXPECT_THAT(numbers((zero + 3) * big), ElementsAre(3 * big));
  EXPECT_THAT(numbers(pow(big, zero + 1)), ElementsAre(big));
  EXPECT_THAT(numbers(clamp(zero, big, big + 2)), ElementsAre(big));
  EXPECT_THAT(numbers(clamp(two, 0, big - 1)), ElementsAre(big - 1, big - 1));
  EXPECT_THAT(numbers(floor_divide(two, big)), ElementsAre(1, 0));
  EXPECT_THAT(numbers(remainder(two, big)), ElementsAre(0, big - 1));
  EXPECT_THAT(numbers(masked_fill(two, eq(two, big), big + 2)), ElementsAre(big + 2, big - 1));
  EXPECT_THAT(eq(two, big).to_vector<bool>(), ElementsAre(true, false));
  EXPECT_THAT(ne(two, big).to_vector<bool>(), ElementsAre(false, true));
  EXPECT_THAT(lt(two, big).to_vector<bool>(), ElementsAre(false, true));
  EXPECT_THAT(le(two, big - 1).to_vector<bool>(), ElementsAre(false, true));
  EXPECT_THAT(gt(two, big - 1).to_vector<bool>(), ElementsAre(true, false));
  EXPECT_THAT(ge(two, big).to_vector<bool>(), ElementsAre(true, false));
  const Tensor changed = zero.clone();
  changed += big;
  EXPECT_THAT(numbers(changed), ElementsAre(big));
  changed -= big - 1;
  EXPECT_THAT(numbers(changed), ElementsAre(1));
  EXPECT_THAT(numbers(fill_(changed, big)), ElementsAre(big));
  EXPECT_THAT(numbers(clamp_(changed, 0, big - 2)), ElementsAre(big - 2));
  changed.index_put_({0}, big);
  EXPECT_THAT(numbers(changed), ElementsAre(big));
}

TEST(ScalarDtype, NumbersBeyondASmallDtypeAreComparedAsTheyAre) {
  for (const DType dtype : {kInt8, kUInt8, kInt32}) {
    const int64_t most = dtype == kInt8 ? 127 : dtype == kUInt8 ? 255 : 2147483647;
    const Tensor x = scalar(most, dtype);
    EXPECT_EQ(eq(x, most + 1).item(), 0) << name_of(dtype);
    EXPECT_EQ(lt(x, most + 1).item(), 1) << name_of(dtype);
    EXPECT_EQ(ge(x, most).item(), 1) << name_of(dtype);
    EXPECT_EQ(gt(x, -most - 2).item(), 1) << name_of(dtype);
  }
}

// As in PyTorch: NaN neither wins nor loses.
TEST(ScalarDtype, BothOperandsOfAnExtremumGetTheGradientOfNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor a = tensor({nan, 1, nan, 2, 3}).set_requires_grad();
  const Tensor b = tensor({1, nan, nan, 2, 1}).set_requires_grad();
  sum(maximum(a, b)).backward();
  EXPECT_THAT(a.grad().to_vector<float>(), ElementsAre(1, 1, 1, 0.5, 1));
  EXPECT_THAT(b.grad().to_vector<float>(), ElementsAre(1, 1, 1, 0.5, 0));
  a.set_grad({});
  b.set_grad({});
  sum(minimum(a, b)).backward();
  EXPECT_THAT(a.grad().to_vector<float>(), ElementsAre(1, 1, 1, 0.5, 0));
  EXPECT_THAT(b.grad().to_vector<float>(), ElementsAre(1, 1, 1, 0.5, 1));
}

TEST(ScalarDtype, FloatingTensorsKeepTheirs) {
  for (const DType dtype : {kBFloat16, kFloat16, kFloat32, kFloat64}) {
    const Tensor x = ones({3}, dtype);
    EXPECT_EQ((x * 2).dtype(), dtype);
    EXPECT_EQ((x * 2.0).dtype(), dtype);
    EXPECT_EQ((1.5 - x).dtype(), dtype);
    EXPECT_EQ(clamp(x, 0, 0.5).dtype(), dtype);
  }
}

TEST(ScalarDtype, ComparisonsMeetInTheSameDtype) {
  const Tensor x = integers(kInt64);
  EXPECT_THAT(lt(x, 1.5).to_vector<bool>(), ElementsAre(true, false, false));
  EXPECT_THAT(eq(x, 2.0).to_vector<bool>(), ElementsAre(false, true, false));
  EXPECT_THAT(eq(x, 2).to_vector<bool>(), ElementsAre(false, true, false));
  // Integers are compared as integers: float32 has no 2^24 + 1.
  const Tensor large = full({1}, 0x1p24 + 1, kInt64);
  EXPECT_FALSE(eq(large, 1 << 24).to_vector<bool>()[0]);
  EXPECT_TRUE(eq(large, 0x1p24).to_vector<bool>()[0]);
}

TEST(ScalarDtype, InPlaceRefusesWhatDoesNotFit) {
  const Tensor x = integers(kInt64);
  EXPECT_THROW(mul_(x, 2.0), TypeError);
  EXPECT_THROW(mul_(x, 1.5), TypeError);
  EXPECT_THROW(add_(x, 1.0), TypeError);
  EXPECT_THROW(sub_(x, 1.0), TypeError);
  EXPECT_THROW(pow_(x, 2.0), TypeError);
  EXPECT_THROW(clamp_(x, 0.0, 1.0), TypeError);
  EXPECT_THAT(x.to_vector<int64_t>(), ElementsAre(1, 2, 3));
  mul_(x, 2);
  add_(x, 1);
  clamp_(x, 4);
  EXPECT_THAT(x.to_vector<int64_t>(), ElementsAre(4, 5, 7));
}

}  // namespace
}  // namespace tapestry

#include "autograd/ops/reduction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;

Tensor matrix() { return tensor({1, 5, 3, 4, 2, 6}).reshape({2, 3}); }

std::vector<float> values(const Tensor& x) { return x.to_vector<float>(); }

TEST(Reduction, SumsIntegersInInt64) {
  const Tensor x = full({3}, 2e9, kInt32);
  EXPECT_EQ(sum(x).dtype(), kInt64);
  EXPECT_EQ(sum(x).item(), 6e9);
  EXPECT_EQ(prod(x).dtype(), kInt64);
  EXPECT_EQ(cumsum(ones({3}, kBool), 0).to_vector<int64_t>(), (std::vector<int64_t>{1, 2, 3}));
}

TEST(Reduction, MeanOfHalvesDoesNotOverflow) {
  EXPECT_EQ(mean(full({100}, 60000, kFloat16)).item(), 60000);
  EXPECT_EQ(mean(full({100}, 60000, kFloat16)).dtype(), kFloat16);
  EXPECT_EQ(var(full({100}, 60000, kFloat16)).item(), 0);
}

TEST(Reduction, MeanAndVarOfNothingAreNan) {
  EXPECT_TRUE(std::isnan(mean(empty({0})).item()));
  EXPECT_TRUE(std::isnan(var(tensor({3})).item()));
  EXPECT_TRUE(std::isnan(tapestry::std(tensor({3})).item()));
  EXPECT_EQ(var(tensor({3}), {}, 0).item(), 0);
}

TEST(Reduction, FloatingFunctionsRefuseIntegers) {
  const Tensor x = ones({3}, kInt64);
  EXPECT_THROW(mean(x), TypeError);
  EXPECT_THROW(var(x), TypeError);
  EXPECT_THROW(tapestry::std(x), TypeError);
}

TEST(Reduction, VarianceAndDeviation) {
  const Tensor x = matrix();
  EXPECT_THAT(values(var(x, {1})), ElementsAre(4, 4));
  EXPECT_THAT(values(tapestry::std(x, {1})), ElementsAre(2, 2));
  EXPECT_THAT(values(var(x, {0}, 0)), ElementsAre(2.25F, 2.25F, 2.25F));
  EXPECT_EQ(var(x, {0, 1}, 1, true).shape(), (Shape{1, 1}));
}

TEST(Reduction, GradientOfAZeroDeviationIsZero) {
  const Tensor x = full({2, 2}, 3);
  x.set_requires_grad();
  sum(tapestry::std(x, {1})).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(0, 0, 0, 0));
}

TEST(Reduction, ChoosesValueAndIndex) {
  const auto [best, at] = max(matrix(), 1);
  EXPECT_THAT(values(best), ElementsAre(5, 6));
  EXPECT_THAT(at.to_vector<int64_t>(), ElementsAre(1, 2));
  const auto [least, where] = min(matrix().t(), 0, true);
  EXPECT_EQ(least.shape(), (Shape{1, 2}));
  EXPECT_THAT(values(least), ElementsAre(1, 2));
  EXPECT_THAT(where.to_vector<int64_t>(), ElementsAre(0, 1));
  EXPECT_EQ(max(matrix()).item(), 6);
  EXPECT_EQ(argmax(matrix()).item(), 5);
  EXPECT_EQ(argmin(matrix(), std::nullopt, true).shape(), (Shape{1, 1}));
  EXPECT_EQ(max(tensor(std::vector<int64_t>{3, 9}, {2}), 0).values.dtype(), kInt64);
}

TEST(Reduction, TheFirstOfEqualsIsChosen) {
  const Tensor x = tensor({2, 7, 7, 1});
  x.set_requires_grad();
  max(x).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(0, 1, 0, 0));
  EXPECT_EQ(argmax(x).item(), 1);
}

TEST(Reduction, EqualsShareTheGradientOfAmax) {
  const Tensor x = tensor({2, 7, 7, 1});
  x.set_requires_grad();
  amax(x).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(0, 0.5, 0.5, 0));
}

TEST(Reduction, NanWins) {
  const Tensor x = tensor({2, NAN, 7, NAN});
  EXPECT_TRUE(std::isnan(max(x).item()));
  EXPECT_TRUE(std::isnan(min(x).item()));
  EXPECT_EQ(argmin(x).item(), 1);
  EXPECT_TRUE(std::isnan(amax(x).item()));
}

TEST(Reduction, AnyAndAll) {
  const Tensor x = tensor({0, NAN, 0, 0}).reshape({2, 2});
  EXPECT_EQ(any(x).dtype(), kBool);
  EXPECT_THAT(any(x, {1}).to_vector<bool>(), ElementsAre(true, false));
  EXPECT_EQ(all(x).item(), 0);
  EXPECT_EQ(any(empty({0})).item(), 0);
  EXPECT_EQ(all(empty({0})).item(), 1);
}

TEST(Reduction, ProductsWithZeros) {
  const Tensor x = tensor({2, 0, 3, 0, 0, 5}).reshape({2, 3});
  x.set_requires_grad();
  const Tensor y = prod(x, {1});
  EXPECT_THAT(values(y), ElementsAre(0, 0));
  sum(y).backward();
  EXPECT_THAT(values(x.grad()), ElementsAre(0, 6, 0, 0, 0, 0));
  EXPECT_EQ(prod(empty({0})).item(), 1);
}

TEST(Reduction, ComparisonsOfWholeTensorsHaveNoGraph) {
  const Tensor x = matrix();
  x.set_requires_grad();
  EXPECT_FALSE(argmax(x).requires_grad());
  EXPECT_FALSE(any(x).requires_grad());
  EXPECT_TRUE(max(x, 0).values.requires_grad());
  EXPECT_FALSE(max(x, 0).indices.requires_grad());
}

}  // namespace
}  // namespace tapestry

#include "autograd/ops/math.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "autograd/ops/loss.h"
#include "autograd/ops/reduction.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/gradcheck.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/ops/expect_close.h"
#include "tests/message_of.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Math, DigitsNearZero) {
  EXPECT_EQ(log1p(tensor({1e-10F})).item(), 1e-10F);
  EXPECT_EQ(expm1(tensor({1e-10F})).item(), 1e-10F);
  EXPECT_EQ(log1p(tensor({-1})).item(), -kInf);
  EXPECT_TRUE(std::isnan(log1p(tensor({-2})).item()));
  EXPECT_EQ(expm1(scalar(1, kInt64)).dtype(), kFloat32);
}

// As PyTorch 1.13 gives them.
TEST(Math, FloorDivideAndRemainderAreThoseOfPython) {
  const Tensor a = tensor({7, -7, 7, -7, 1, kInf, 1, -1});
  const Tensor b = tensor({3, 3, -3, -3, kInf, 2, -kInf, kInf});
  const std::vector<float> quotients = floor_divide(a, b).to_vector<float>();
  EXPECT_THAT(std::vector<float>(quotients.begin(), quotients.begin() + 5),
              ElementsAre(2, -3, -3, 2, 0));
  EXPECT_EQ(quotients[6], -1);
  EXPECT_EQ(quotients[7], -1);
  const std::vector<float> rests = remainder(a, b).to_vector<float>();
  EXPECT_THAT(std::vector<float>(rests.begin(), rests.begin() + 5), ElementsAre(1, 2, -2, -1, 1));
  EXPECT_TRUE(std::isnan(rests[5]));
  EXPECT_EQ(rests[6], -kInf);
  EXPECT_EQ(rests[7], kInf);
  EXPECT_EQ(floor_divide(tensor({5.5F}), 0.0).item(), kInf);
  EXPECT_TRUE(std::isnan(remainder(tensor({5.5F}), 0.0).item()));
  // 6 / 0.1 rounds to 60, but 0.1 is a little more than a tenth.
  EXPECT_EQ(floor_divide(scalar(6, kFloat64), 0.1).item(), 59);
  const Tensor n = tensor(std::vector<int64_t>{7, -7, std::numeric_limits<int64_t>::min()}, {3});
  EXPECT_THAT(floor_divide(n, scalar(-1, kInt64)).to_vector<int64_t>(),
              ElementsAre(-7, 7, std::numeric_limits<int64_t>::min()));
  EXPECT_THAT(remainder(n, -3.0).to_vector<int64_t>(), ElementsAre(-2, -1, -2));
  EXPECT_EQ(remainder(n, 2.5).dtype(), kFloat32);
  EXPECT_FALSE(floor_divide(tensor({1}).set_requires_grad(), 2.0).requires_grad());
}

TEST(Math, AllClose) {
  EXPECT_TRUE(allclose(tensor({1, 2}), tensor({1.000001F, 2})));
  EXPECT_FALSE(allclose(tensor({1, 2}), tensor({1.1F, 2})));
  EXPECT_TRUE(allclose(tensor({1, 2}), tensor({1.1F, 2}), 0, 0.2));
  EXPECT_TRUE(allclose(tensor({kInf, -kInf}), tensor({kInf, -kInf})));
  EXPECT_FALSE(allclose(tensor({1}), tensor({kInf})));
  EXPECT_FALSE(allclose(tensor({kInf}), tensor({-kInf})));
  EXPECT_FALSE(allclose(tensor({NAN}), tensor({NAN})));
  EXPECT_TRUE(allclose(tensor({NAN}), tensor({NAN}), 1e-5, 1e-8, /*equal_nan=*/true));
  EXPECT_FALSE(allclose(tensor({NAN}), tensor({1}), 1e-5, 1e-8, true));
  EXPECT_TRUE(allclose(arange(3), arange(3).view({1, 3})));
  EXPECT_TRUE(allclose(zeros({0}), zeros({0})));
  EXPECT_THROW(allclose(zeros({2}), zeros({3})), ValueError);
}

// Values and gradients of PyTorch 1.13.
TEST(RegressionLoss, AgreesWithPyTorch) {
  const auto doubles = [](const std::vector<double>& values, const Shape& shape) {
    return tensor(values, shape).set_requires_grad();
  };
  const Tensor a = doubles({1, -2, 0.25, 0, 3}, {5});
  const Tensor b = doubles({0.5, 1, 0, 0, 0}, {5});
  EXPECT_DOUBLE_EQ(l1_loss(a, b).item(), 1.35);
  EXPECT_THAT(grad(l1_loss(a, b, Reduction::kSum), {a})[0].to_vector<double>(),
              ElementsAre(1, -1, 1, 0, 1));
  EXPECT_THAT(smooth_l1_loss(a, b, {.reduction = Reduction::kNone}).to_vector<double>(),
              ElementsAre(0.125, 2.5, 0.03125, 0, 2.5));
  const Tensor half = smooth_l1_loss(a, b, {.reduction = Reduction::kNone, .beta = 0.5});
  EXPECT_THAT(half.to_vector<double>(), ElementsAre(0.25, 2.75, 0.0625, 0, 2.75));
  EXPECT_THAT(grad(sum(half), {b})[0].to_vector<double>(), ElementsAre(-1, 1, -0.5, 0, -1));
  EXPECT_DOUBLE_EQ(smooth_l1_loss(a, b, {.beta = 0}).item(), 1.35);

  const Tensor input = doubles({-1, -2, -0.5, -3, -1, -0.7}, {2, 3});
  const Tensor target = doubles({0.2, 0, 0.8, 0.5, 0.5, 0}, {2, 3});
  EXPECT_DOUBLE_EQ(kl_div(input, target).item(), 0.2344083993169778);
  EXPECT_DOUBLE_EQ(kl_div(input, target, {.reduction = Reduction::kSum}).item(),
                   1.4064503959018668);
  EXPECT_DOUBLE_EQ(kl_div(input, target, {.batch_mean = true}).item(), 0.7032251979509334);
  const TensorList gradients =
      grad(kl_div(input, target, {.reduction = Reduction::kSum}), {input, target});
  EXPECT_THAT(gradients[0].to_vector<double>(), ElementsAre(-0.2, 0, -0.8, -0.5, -0.5, 0));
  // PyTorch's is NaN where the target is 0.
  expect_close(gradients[1],
               tensor(std::vector<double>{std::log(0.2) + 2, 2, std::log(0.8) + 1.5,
                                          std::log(0.5) + 4, std::log(0.5) + 2, 0.7},
                      {2, 3}),
               1e-15);
  const Tensor logs = doubles(
      {std::log(0.2), std::log(0.1), std::log(0.7), std::log(0.5), std::log(0.25), std::log(0.25)},
      {2, 3});
  EXPECT_DOUBLE_EQ(kl_div(input, logs, {.log_target = true}).item(), 0.13891011276945744);
}

TEST(RegressionLoss, SecondDerivativesAndMistakes) {
  const Tensor a = tensor(std::vector<double>{-1, -2, -0.5, -3}, {2, 2}).set_requires_grad();
  const Tensor b = tensor(std::vector<double>{0.2, 0.9, 0.1, 2}, {2, 2}).set_requires_grad();
  const auto function = [](const TensorList& in) {
    return TensorList{l1_loss(in[0], in[1]), smooth_l1_loss(in[0], in[1], {.beta = 2}),
                      kl_div(in[0], in[1]), kl_div(in[0], in[1], {.log_target = true})};
  };
  EXPECT_TRUE(gradcheck(function, {a, b})) << gradcheck(function, {a, b}).message;
  EXPECT_TRUE(gradgradcheck(function, {a, b})) << gradgradcheck(function, {a, b}).message;
  EXPECT_THAT(message_of<ValueError>([&] { l1_loss(a, zeros({2})); }),
              Says("l1_loss: ... shapes ... input [2, 2] ... target [2] differ"));
  EXPECT_THROW(smooth_l1_loss(a, zeros({2})), ValueError);
  EXPECT_THROW(kl_div(a, zeros({2})), ValueError);
  EXPECT_THAT(message_of<ValueError>([&] { smooth_l1_loss(a, b, {.beta = -1}); }),
              Says("beta ... negative, got -1"));
  EXPECT_THAT(message_of<ValueError>([&] { kl_div(scalar(0), scalar(1), {.batch_mean = true}); }),
              HasSubstr("needs an axis"));
  EXPECT_THROW(l1_loss(arange(3), arange(3)), TypeError);
}

}  // namespace
}  // namespace tapestry

#include "optim/grad_clip.h"

#include <cmath>
#include <limits>

#include "autograd/ops/shape_ops.h"
#include "tests/nn/nn_test_util.h"

namespace tapestry::optim {
namespace {

using ::testing::ElementsAre;

constexpr double kInf = std::numeric_limits<double>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(GlobalNorm, IsOverAllTensorsTogether) {
  EXPECT_EQ(global_norm({tensor({3, 0}), Tensor(), matrix(1, 1, {-4})}), 5);
  EXPECT_EQ(global_norm({}), 0);
  EXPECT_EQ(global_norm({zeros({0})}), 0);
  // Strides, dtypes, and squares that float32 does not hold.
  EXPECT_EQ(global_norm({matrix(2, 2, {3, 9, 4, 9}).t().select(0, 0)}), 5);
  EXPECT_EQ(global_norm({full({4}, 3, kBFloat16), full({4}, 4, kFloat64)}), 10);
  EXPECT_NEAR(global_norm({full({4}, 1e30)}), 2e30, 1e24);
}

TEST(GlobalNorm, IsNanBeforeInfinity) {
  EXPECT_EQ(global_norm({tensor({1}), tensor({static_cast<float>(-kInf)})}), kInf);
  EXPECT_TRUE(std::isnan(global_norm({tensor({static_cast<float>(kInf)}), tensor({kNan})})));
}

TEST(ClipCoefficient, IsTheLimitOverTheNorm) {
  EXPECT_EQ(clip_coefficient(0.5, 1), 1);
  EXPECT_EQ(clip_coefficient(0, 1), 1);
  EXPECT_EQ(clip_coefficient(1, 1), 1);  // not 1 / (1 + 1e-6)
  EXPECT_EQ(clip_coefficient(4, 1), 1 / (4 + 1e-6));
  EXPECT_EQ(clip_coefficient(kInf, 1), 1);
  EXPECT_EQ(clip_coefficient(kNan, 1), 1);
  for (const double limit : {0.0, -1.0, std::nan("")}) {
    expect_throws<ValueError>([&] { clip_coefficient(1, limit); }, {"clip_value", concat(limit)});
    expect_throws<ValueError>([&] { clip_grad_norm({tensor({1})}, limit); }, {"clip_value"});
    expect_throws<ValueError>([&] { clip_grad_value({tensor({1})}, limit); }, {"clip_value"});
  }
}

TEST(ClipGradNorm, ScalesInPlaceAndReturnsTheNormBefore) {
  const Tensor a = tensor({3, 0});
  const Tensor base = matrix(2, 2, {4, 7, 0, 7});
  const Tensor b = base.select(1, 0);
  EXPECT_EQ(clip_grad_norm({a, Tensor(), b}, 2.5), 5);
  EXPECT_NEAR(global_norm({a, b}), 2.5, 1e-5);
  EXPECT_NEAR(a.at({0}), 1.5, 1e-6);
  EXPECT_EQ(base.at({0, 1}), 7);  // what lies between is not touched
}

TEST(ClipGradNorm, TouchesNothingBelowTheLimitOrForANormThatIsNotFinite) {
  const Tensor a = tensor({3, 4});
  const uint32_t version = a.version();
  EXPECT_EQ(clip_grad_norm({a}, 6), 5);
  EXPECT_EQ(clip_grad_norm({a, tensor({static_cast<float>(kInf)})}, 1), kInf);
  EXPECT_TRUE(std::isnan(clip_grad_norm({a, tensor({kNan})}, 1)));
  EXPECT_THAT(values(a), ElementsAre(3, 4));
  EXPECT_EQ(a.version(), version);
}

TEST(ClipGradValue, LimitsEachElement) {
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor a = tensor({-3, -0.5, 0, 0.5, 3, inf, -inf, kNan});
  clip_grad_value({Tensor(), a}, 1);
  std::vector<float> found = values(a);
  EXPECT_TRUE(std::isnan(found.back()));
  found.pop_back();
  EXPECT_THAT(found, ElementsAre(-1, -0.5, 0, 0.5, 1, 1, -1));
  const Tensor half = full({3}, -8, kBFloat16);
  clip_grad_value({half}, 0.5);
  EXPECT_THAT(values(half), ::testing::Each(-0.5));
}

TEST(Clipping, RefusesMemoryThatItWouldScaleTwice) {
  const Tensor one = tensor({3});
  const Tensor rows = tensor({3, 4, 5, 6});
  for (const TensorList& gradients :
       {TensorList{one.expand({4})}, TensorList{rows, rows},
        TensorList{rows.slice(0, 0, 3), tensor({1}), rows.slice(0, 2, 4)}}) {
    expect_throws<RuntimeError>([&] { clip_grad_norm(gradients, 0.1); }, {"share memory"});
    expect_throws<RuntimeError>([&] { clip_grad_value(gradients, 0.1); }, {"share memory"});
  }
  EXPECT_THAT(values(rows), ElementsAre(3, 4, 5, 6));
  EXPECT_EQ(one.item(), 3);
  // Pieces of one tensor that lie side by side are none of that.
  clip_grad_value({rows.slice(0, 0, 2), rows.slice(0, 2, 4)}, 4);
  EXPECT_THAT(values(rows), ElementsAre(3, 4, 4, 4));
}

}  // namespace
}  // namespace tapestry::optim

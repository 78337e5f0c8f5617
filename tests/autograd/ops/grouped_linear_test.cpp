#include "autograd/ops/transformer/grouped_linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/main_grad.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/ops/expect_close.h"

namespace tapestry {
namespace {

using ::testing::Each;
using ::testing::ElementsAreArray;

using GroupEnds = std::vector<int64_t>;

// Multiples of 1/8 between -1 and 1, in no order.
Tensor eighths(const Shape& shape, int64_t seed, DType dtype = kFloat32) {
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<double>((static_cast<int64_t>(i) * 7 + seed * 5) % 17 - 8) / 8;
  }
  return tensor(values, shape).to(dtype);
}

Tensor leaf_of(const Tensor& values) { return values.clone().set_requires_grad(); }

// Each group by linear().
Tensor by_linear(const Tensor& x,
                 const Tensor& weight,
                 const GroupEnds& ends,
                 const Tensor& bias = {}) {
  TensorList parts;
  int64_t begin = 0;
  for (size_t e = 0; e < ends.size(); ++e) {
    const auto group = static_cast<int64_t>(e);
    parts.push_back(linear(x.slice(0, begin, ends[e]), weight.select(0, group),
                           bias.defined() ? bias.select(0, group) : Tensor()));
    begin = ends[e];
  }
  return cat(parts, 0);
}

TEST(GroupedLinear, IsALinearLayerForEachGroup) {
  const GroupEnds ends = {3, 3, 10, 11};
  for (const DType dtype : {kFloat64, kFloat32}) {
    const auto gradients = [&](auto&& function) {
      const Tensor x = leaf_of(eighths({11, 6}, 1, dtype));
      const Tensor weight = leaf_of(eighths({4, 5, 6}, 2, dtype));
      const Tensor bias = leaf_of(eighths({4, 5}, 3, dtype));
      const Tensor y = function(x, weight, ends, bias);
      y.backward(eighths({11, 5}, 4, dtype));
      return TensorList{y.detach(), x.grad(), weight.grad(), bias.grad()};
    };
    const TensorList got = gradients([](auto&&... in) { return grouped_linear(in...); });
    const TensorList expected = gradients([](auto&&... in) { return by_linear(in...); });
    for (size_t i = 0; i < got.size(); ++i) {
      expect_close(got[i], expected[i], 0);  // every sum is exact
    }
  }
}

// float32 parameters and 16-bit rows: the product is that of the rounded weight, gradients of
// parameters are float32 sums.
TEST(GroupedLinear, MixedPrecisionIsThatOfLinear) {
  const GroupEnds ends = {2, 7, 7};
  for (const DType dtype : {kBFloat16, kFloat16}) {
    const auto gradients = [&](auto&& function) {
      const Tensor x = leaf_of(eighths({7, 6}, 1, dtype));
      const Tensor weight = leaf_of(eighths({3, 5, 6}, 2) * 1.001);
      const Tensor bias = leaf_of(eighths({3, 5}, 3) * 1.001);
      const Tensor y = function(x, weight, bias);
      y.backward(eighths({7, 5}, 4, dtype));
      EXPECT_EQ(y.dtype(), dtype);
      EXPECT_EQ(weight.grad().dtype(), kFloat32);
      EXPECT_EQ(bias.grad().dtype(), kFloat32);
      return TensorList{y.detach(), x.grad(), weight.grad(), bias.grad()};
    };
    const TensorList expected = gradients([&](const Tensor& x, const Tensor& w, const Tensor& b) {
      return by_linear(x, w, ends, b);
    });
    for (const bool given : {false, true}) {
      const TensorList got = gradients([&](const Tensor& x, const Tensor& w, const Tensor& b) {
        return grouped_linear(x, w, ends, b, given ? w.detach().to(dtype) : Tensor());
      });
      for (size_t i = 0; i < got.size(); ++i) {
        // Sums of six terms in another order, one rounding to the dtype.
        const bool narrow = got[i].dtype() == dtype;
        expect_close(got[i], expected[i], narrow ? (dtype == kBFloat16 ? 0x1p-7 : 0x1p-10) : 1e-6);
      }
    }
  }
}

TEST(GroupedLinear, UsesTheRoundedWeightThatItIsGiven) {
  const Tensor x = leaf_of(eighths({4, 3}, 1, kBFloat16));
  const Tensor weight = leaf_of(eighths({2, 5, 3}, 2));
  const Tensor rounded = zeros({2, 5, 3}, kBFloat16);
  const Tensor y = grouped_linear(x, weight, {1, 4}, {}, rounded);
  EXPECT_THAT(y.to_vector<float>(), Each(0));
  sum(y.to(kFloat32)).backward();
  EXPECT_THAT(x.grad().to_vector<float>(), Each(0));
  expect_close(weight.grad().select(0, 0).select(0, 3), x.detach().select(0, 0).to(kFloat32), 0);
}

TEST(GroupedLinear, IdleGroupsHaveGradientsOfZero) {
  for (const GroupEnds& ends : {GroupEnds{0, 4, 4}, GroupEnds{0, 0, 0}}) {
    const Tensor x = leaf_of(eighths({ends.back(), 3}, 1));
    const Tensor weight = leaf_of(eighths({3, 2, 3}, 2));
    const Tensor bias = leaf_of(eighths({3, 2}, 3));
    sum(grouped_linear(x, weight, ends, bias)).backward();
    ASSERT_TRUE(weight.grad().defined() && bias.grad().defined() && x.grad().defined());
    EXPECT_EQ(x.grad().shape(), x.shape());
    for (const int64_t idle : {0, 2}) {
      EXPECT_THAT(weight.grad().select(0, idle).to_vector<float>(), Each(0));
      EXPECT_THAT(bias.grad().select(0, idle).to_vector<float>(), Each(0));
    }
  }
}

TEST(GroupedLinear, KeepsOnlyWhatTheGradientsNeed) {
  const Tensor x = eighths({4, 3}, 1);
  const Tensor weight = eighths({2, 5, 3}, 2);
  const Tensor bias = leaf_of(eighths({2, 5}, 3));
  const Tensor y = grouped_linear(x, weight, {3, 4}, bias);
  x.bump_version();  // neither is saved
  weight.bump_version();
  sum(y).backward();
  EXPECT_THAT(bias.grad().to_vector<float>(), ElementsAreArray({3, 3, 3, 3, 3, 1, 1, 1, 1, 1}));
  const Tensor changed = leaf_of(eighths({4, 3}, 1));
  const Tensor out = grouped_linear(changed, weight, {3, 4});
  weight.bump_version();
  EXPECT_THROW(sum(out).backward(), RuntimeError);
}

// A weight of ends {0, 3, 5}: the first group is idle.
std::vector<float> gradient_of(DType dtype,
                               const std::function<void(const Tensor&)>& prepare,
                               int passes) {
  const Tensor x = eighths({5, 3}, 1, dtype);
  const Tensor weight = leaf_of(eighths({3, 2, 3}, 2));
  prepare(weight);
  for (int i = 0; i < passes; ++i) {
    grouped_linear(x, weight, {0, 3, 5}).backward(eighths({5, 2}, 3, dtype));
  }
  return weight.grad().to_vector<float>();
}

TEST(GroupedLinear, AddsTheWeightGradientToMainGrad) {
  for (const DType dtype : {kFloat32, kBFloat16, kFloat16}) {
    const auto plain = gradient_of(
        dtype, [](const Tensor&) {}, 1);
    std::vector<float> twice = plain;
    std::vector<float> above_seven = plain;
    for (size_t i = 0; i < plain.size(); ++i) {
      twice[i] = 2 * plain[i];
      above_seven[i] = 7 + plain[i];
    }
    const auto onto = [&](double value) {
      return [value](const Tensor& weight) { weight.set_main_grad(full(weight.shape(), value)); };
    };
    EXPECT_EQ(gradient_of(dtype, onto(7), 1), above_seven);
    EXPECT_EQ(gradient_of(dtype, onto(0), 2), twice);
    // One that stands for zeros is written whole, also for the idle group.
    const auto fresh = [](const Tensor& weight) {
      weight.set_main_grad(full(weight.shape(), std::nan("")));
      reset_main_grad(weight);
    };
    EXPECT_EQ(gradient_of(dtype, fresh, 1), plain);
    EXPECT_EQ(gradient_of(dtype, fresh, 2), twice);
    EXPECT_EQ(gradient_of(
                  dtype, [](const Tensor& w) { attach_main_grad(w, kFloat32); }, 2),
              twice);
    EXPECT_EQ(gradient_of(
                  dtype, [](const Tensor& w) { attach_main_grad(w, kBFloat16); }, 1),
              plain);
  }
}

TEST(GroupedLinear, MainGradIsTheBufferItself) {
  const Tensor x = eighths({5, 3}, 1);
  const Tensor weight = leaf_of(eighths({3, 2, 3}, 2));
  const Tensor buffer = zeros({3, 2, 3});
  weight.set_main_grad(buffer);
  sum(grouped_linear(x, weight, {0, 3, 5})).backward();
  EXPECT_TRUE(weight.main_grad().is_same(buffer));
  // A pass that returns gradients leaves it alone.
  const std::vector<float> before = buffer.to_vector<float>();
  const TensorList found = grad(sum(grouped_linear(x, weight, {0, 3, 5})), {weight});
  EXPECT_EQ(found[0].to_vector<float>(), before);
  EXPECT_EQ(buffer.to_vector<float>(), before);
}

// A tensor whose memory is fetched when it is touched, as that of a partitioned parameter.
class Windows {
 public:
  Tensor make(const Tensor& values) {
    const Ref<Storage> window =
        make_ref<Storage>(values.numel() * size_of(values.dtype()), [this, values]() -> std::byte* {
          ++opened;
          return static_cast<std::byte*>(values.raw());
        });
    storages.push_back(window);
    return Tensor(make_ref<TensorImpl>(window, 0, values.shape(),
                                       contiguous_strides(values.shape()), values.dtype()));
  }
  void close() {
    for (const Ref<Storage>& storage : storages) {
      storage->close();
    }
    opened = 0;
  }

  int opened = 0;
  std::vector<Ref<Storage>> storages;
};

TEST(GroupedLinear, TouchesWeightAndBiasAlsoWithoutRows) {
  for (const DType dtype : {kFloat32, kBFloat16}) {
    for (const GroupEnds& ends : {GroupEnds{0, 0}, GroupEnds{0, 4}}) {
      Windows windows;
      const Tensor weight = windows.make(eighths({2, 5, 3}, 1)).set_requires_grad();
      const Tensor bias = windows.make(eighths({2, 5}, 2)).set_requires_grad();
      const Tensor x = leaf_of(eighths({ends.back(), 3}, 3, dtype));
      const Tensor y = grouped_linear(x, weight, ends, bias);
      EXPECT_EQ(windows.opened, 2);
      windows.close();
      const bool again = dtype == kFloat32;  // else the rounded copy is used
      EXPECT_TRUE(grad(y, {x}, ones_like(y))[0].defined());
      EXPECT_EQ(windows.opened, again ? 1 : 0);
    }
  }
}

}  // namespace
}  // namespace tapestry

#include "autograd/ops/transformer/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/random.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/ops/expect_close.h"

namespace tapestry {
namespace {

Tensor input(const Shape& shape, uint64_t stream) {
  return normal(0, 1, shape, kFloat64, RandomKey{7, stream, 0});
}

TEST(Rope, TableHoldsTheAngles) {
  const RopeTable table = rope_table(50, 6, {.base = 1000, .dtype = kFloat64});
  EXPECT_EQ(table.cos.shape(), (Shape{50, 3}));
  for (const int64_t s : {0, 1, 49}) {
    for (int64_t j = 0; j < 3; ++j) {
      const double angle = static_cast<double>(s) * std::pow(1000.0, -2.0 * j / 6);
      EXPECT_NEAR(table.cos.at({s, j}), std::cos(angle), 1e-14);
      EXPECT_NEAR(table.sin.at({s, j}), std::sin(angle), 1e-14);
    }
  }
  // float32 entries are the rounded double ones, also far out.
  const RopeTable rounded = rope_table(20000, 6, {.base = 1000});
  const RopeTable exact = rope_table(20000, 6, {.base = 1000, .dtype = kFloat64});
  EXPECT_EQ(rounded.sin.dtype(), kFloat32);
  expect_close(rounded.sin, exact.sin.to(kFloat32), 0);
}

TEST(Rope, InterpolationDividesPositions) {
  const RopeTable table = rope_table(9, 4, {.dtype = kFloat64});
  const RopeTable stretched =
      rope_table(17, 4, {.seq_len_interpolation_factor = 2, .dtype = kFloat64});
  expect_close(slice(stretched.sin, 0, 0, 17, 2), table.sin, 1e-14);
  const std::vector<double> halves = {0.5, 0.005};
  expect_close(rope_table(17, halves, kFloat64).sin, stretched.sin, 1e-14);
}

TEST(Rope, FusedFormEqualsItsTwin) {
  const RopeTable table = rope_table(12, 6, {.dtype = kFloat64});
  for (const bool interleaved : {false, true}) {
    for (const int64_t channels : {6, 9}) {
      const RopeOptions options{.interleaved = interleaved, .position_offset = 4};
      const Tensor a = input({2, 3, 8, channels}, 1).set_requires_grad();
      const Tensor b = a.detach().set_requires_grad();
      const Tensor fused = rope(a, table, options);
      const Tensor twin = composed_rope(b, table, options);
      expect_close(fused, twin, 1e-15);
      const Tensor dy = input(fused.shape(), 2);
      expect_close(grad(fused, {a}, dy)[0], grad(twin, {b}, dy)[0], 1e-15);
    }
  }
}

TEST(Rope, PairsAreTheOnesNamed) {
  const RopeTable table = rope_table(2, 4, {.base = 100, .dtype = kFloat64});
  const Tensor x = tensor<double>({1, 2, 3, 4}, {1, 1, 1, 4});
  const double c0 = std::cos(1.0);
  const double s0 = std::sin(1.0);
  const double c1 = std::cos(0.1);
  const double s1 = std::sin(0.1);
  expect_close(
      rope(x, table, {.position_offset = 1}),
      tensor<double>({c0 - 3 * s0, 2 * c1 - 4 * s1, 3 * c0 + s0, 4 * c1 + 2 * s1}, {1, 1, 1, 4}),
      1e-15);
  expect_close(
      rope(x, table, {.interleaved = true, .position_offset = 1}),
      tensor<double>({c0 - 2 * s0, 2 * c0 + s0, 3 * c1 - 4 * s1, 4 * c1 + 3 * s1}, {1, 1, 1, 4}),
      1e-15);
}

TEST(Rope, ProductsDependOnDistanceOnly) {
  const RopeTable table = rope_table(40, 8, {.dtype = kFloat64});
  const Tensor q = input({1, 1, 1, 8}, 1);
  const Tensor k = input({1, 1, 1, 8}, 2);
  const auto product = [&](int64_t i, int64_t j) {
    return sum(mul(rope(q, table, {.position_offset = i}), rope(k, table, {.position_offset = j})))
        .item();
  };
  EXPECT_NEAR(product(7, 3), product(33, 29), 1e-13);
  EXPECT_GT(std::abs(product(7, 3) - product(7, 4)), 1e-4);
}

TEST(Rope, ResultLiesInMemoryAsItsInput) {
  const RopeTable table = rope_table(5, 4);
  const Tensor x = zeros({2, 5, 3, 4}).permute({0, 2, 1, 3});
  EXPECT_EQ(rope(x, table).strides(), x.strides());
  EXPECT_TRUE(rope(zeros({2, 3, 5, 4}), table).is_contiguous());
  const Tensor expanded = zeros({1, 3, 5, 4}).expand({2, 3, 5, 4});
  EXPECT_EQ(rope(expanded, table).shape(), (Shape{2, 3, 5, 4}));
}

TEST(Rope, SixteenBitsAreRoundedOnce) {
  const RopeTable table = rope_table(5, 4);
  const Tensor x = input({1, 2, 5, 6}, 1).to(kBFloat16);
  expect_close(rope(x, table), rope(x.to(kFloat32), table).to(kBFloat16), 0);
  EXPECT_EQ(rope(x, table).dtype(), kBFloat16);
}

TEST(Rope, Errors) {
  EXPECT_THROW(rope_table(-1, 4), ValueError);
  EXPECT_THROW(rope_table(5, 3), ValueError);
  EXPECT_THROW(rope_table(5, 0), ValueError);
  EXPECT_THROW(rope_table(5, 4, {.base = 0}), ValueError);
  EXPECT_THROW(rope_table(5, 4, {.seq_len_interpolation_factor = 0}), ValueError);
  EXPECT_THROW(rope_table(5, 4, {.dtype = kBFloat16}), TypeError);
  const Tensor x = zeros({1, 1, 2, 4});
  EXPECT_THROW(rope(x, {}), RuntimeError);
  EXPECT_THROW(rope(x, rope_table(5, 4, {.dtype = kFloat64})), TypeError);
}

}  // namespace
}  // namespace tapestry

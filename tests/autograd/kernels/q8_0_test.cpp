#include "autograd/kernels/gemm/q8_0.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "autograd/kernels/gemm/gemm_q8_0.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "tests/autograd/kernels/gemm_testing.h"
#include "tests/cpu_levels.h"

namespace tapestry::kernels {
namespace {

std::vector<uint8_t> encoded(const std::vector<float>& x, int64_t rows) {
  const auto n = static_cast<int64_t>(x.size()) / rows;
  std::vector<uint8_t> blocks(static_cast<size_t>(rows * q8_0_row_bytes(n)));
  EXPECT_TRUE(encode_q8_0(kFloat32, rows, n, x.data(), n, blocks.data()));
  return blocks;
}

float scale_of_block(const uint8_t* block) {
  Float16 scale;
  std::memcpy(&scale.bits, block, 2);
  return static_cast<float>(scale);
}

TEST(Q8Blocks, AreWhatTheFormatSays) {
  std::vector<float> x(32, 0.0F);
  x[0] = -127;  // the scale is 1
  x[1] = 0.5F;  // halves go away from zero
  x[2] = -0.5F;
  x[3] = 1.5F;
  x[4] = -2.5F;
  x[5] = 0.49999997F;
  x[6] = 126.7F;
  const std::vector<uint8_t> blocks = encoded(x, 1);
  ASSERT_EQ(blocks.size(), 34U);
  EXPECT_EQ(blocks[0], 0x00);  // 1.0 as float16, little-endian
  EXPECT_EQ(blocks[1], 0x3c);
  const std::vector<int> expected = {-127, 1, -1, 2, -3, 0, 127, 0};
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(static_cast<int8_t>(blocks[2 + i]), expected[i]) << i;
  }
}

TEST(Q8Blocks, ZerosAndTheSmallestNumbers) {
  for (const float tiny : {0.0F, -0.0F, 1e-45F, 1e-39F, 1e-30F}) {
    const std::vector<uint8_t> blocks = encoded(std::vector<float>(32, tiny), 1);
    EXPECT_EQ(scale_of_block(blocks.data()), 0) << tiny;
  }
}

TEST(Q8Blocks, NumbersAreWithinHalfAStepAndTheScalesRounding) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<float> x(7 * 96);
  for (float& v : x) {
    v = normal(random);
  }
  at_every_cpu_level([&] {
    const std::vector<uint8_t> blocks = encoded(x, 7);
    std::vector<float> back(x.size());
    decode_q8_0(kFloat32, 7, 96, blocks.data(), q8_0_row_bytes(96), back.data(), 96);
    for (size_t i = 0; i < x.size(); ++i) {
      const float scale = scale_of_block(blocks.data() + i / 32 * 34);
      EXPECT_NEAR(back[i], x[i], 0.5F * scale + 128 * scale * 0x1p-11F) << i;
      const auto q = static_cast<float>(static_cast<int8_t>(blocks[i / 32 * 34 + 2 + i % 32]));
      EXPECT_EQ(back[i], scale * q) << i;
    }
    // Columns from the second block on, in other dtypes: rounded once.
    std::vector<BFloat16> narrow(7 * 64);
    decode_q8_0(kBFloat16, 7, 64, blocks.data() + 34, q8_0_row_bytes(96), narrow.data(), 64);
    std::vector<Float16> half(7 * 64);
    decode_q8_0(kFloat16, 7, 64, blocks.data() + 34, q8_0_row_bytes(96), half.data(), 64);
    for (size_t row = 0; row < 7; ++row) {
      for (size_t i = 0; i < 64; ++i) {
        const float value = back[row * 96 + 32 + i];
        EXPECT_EQ(narrow[row * 64 + i].bits, BFloat16(value).bits);
        EXPECT_EQ(half[row * 64 + i].bits, Float16(value).bits);
      }
    }
  });
}

TEST(Q8Blocks, SixteenBitsAreEncodedAsTheirValues) {
  std::vector<BFloat16> narrow;
  std::vector<float> wide;
  std::mt19937 random(6);
  for (int i = 0; i < 64; ++i) {
    narrow.emplace_back(static_cast<float>(random() % 1000) * 0.01F - 5);
    wide.push_back(static_cast<float>(narrow.back()));
  }
  std::vector<uint8_t> blocks(68);
  ASSERT_TRUE(encode_q8_0(kBFloat16, 2, 32, narrow.data(), 32, blocks.data()));
  EXPECT_EQ(blocks, encoded(wide, 2));
}

TEST(Q8Blocks, WhatHasNoBlockIsReported) {
  std::vector<uint8_t> blocks(68);
  const float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {inf, -inf, std::nanf(""), 1e7F, 3e38F}) {
    std::vector<float> x(64, 1.0F);
    x[40] = bad;
    EXPECT_FALSE(encode_q8_0(kFloat32, 2, 32, x.data(), 32, blocks.data())) << bad;
  }
}

/// y = x W^T and dx = dy W against loops over the decoded numbers.
template <class T>
void check_products(int64_t n, int64_t out, int64_t in) {
  const auto values = gemm_testing::random_matrix<float>(out * in, 3);
  const std::vector<uint8_t> blocks = encoded(values, out);
  std::vector<float> w(values.size());
  decode_q8_0(kFloat32, out, in, blocks.data(), q8_0_row_bytes(in), w.data(), in);
  const Q8Matrix matrix = {blocks.data(), out, in};
  const auto x = gemm_testing::random_matrix<T>(n * (in + 3), 4);
  std::vector<T> y(static_cast<size_t>(n * out), T(0.25F));
  gemm_q8_0(dtype_of<T>(), n, matrix, x.data(), in + 3, 1, y.data(), out);
  const auto dy = gemm_testing::random_matrix<T>(n * out, 5);
  std::vector<T> dx(static_cast<size_t>(n * in));
  gemm_q8_0_backward(dtype_of<T>(), n, matrix, dy.data(), out, dx.data(), in);
  // Sums in float32, a rounding of the result, and, where W is widened to 16 bits, one of each of
  // its numbers.
  const double item = sizeof(T) == 4 ? 6e-8 : dtype_of<T>() == kBFloat16 ? 0x1p-8 : 0x1p-11;
  const auto bound = [&](double size, int64_t terms) {
    return size * (1.01 * item + 6e-8 * static_cast<double>(terms + 2)) + 1e-9;
  };
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = 0.25;
      double size = 0.25;
      for (int64_t i = 0; i < in; ++i) {
        const double product = gemm_testing::as_double(x[r * (in + 3) + i]) * w[o * in + i];
        sum += product;
        size += std::abs(product);
      }
      ASSERT_NEAR(gemm_testing::as_double(y[r * out + o]), sum,
                  bound(size, in) + item * std::abs(sum) * 2)
          << n << " " << out << " " << in << " at " << r << ", " << o;
    }
    for (int64_t i = 0; i < in; ++i) {
      double sum = 0;
      double size = 0;
      for (int64_t o = 0; o < out; ++o) {
        const double product = gemm_testing::as_double(dy[r * out + o]) * w[o * in + i];
        sum += product;
        size += std::abs(product);
      }
      ASSERT_NEAR(gemm_testing::as_double(dx[r * in + i]), sum,
                  bound(size, out) + item * std::abs(sum) * 2)
          << n << " " << out << " " << in << " at " << r << ", " << i;
    }
  }
}

TEST(Q8Products, MatchLoopsOverTheDecodedNumbers) {
  at_every_cpu_level([] {
    for (const int64_t n : {1, 2, 5, 16, 64, 70}) {
      for (const int64_t out : {1, 7, 65}) {
        for (const int64_t in : {32, 96}) {
          check_products<float>(n, out, in);
          check_products<BFloat16>(n, out, in);
          check_products<Float16>(n, out, in);
        }
      }
    }
  });
}

TEST(Q8Products, SeveralPartsOfALargeMatrix) {
  check_products<float>(66, 300, 32 * 130);  // more than what is decoded at a time, both ways
  check_products<BFloat16>(66, 700, 32 * 160);
}

TEST(Q8Products, ARowDependsOnNeitherCompanionsNorThreads) {
  const int threads = num_threads();
  at_every_cpu_level([] {
    constexpr int64_t kOut = 901;
    constexpr int64_t kIn = 320;
    const std::vector<uint8_t> blocks =
        encoded(gemm_testing::random_matrix<float>(kOut * kIn, 3), kOut);
    const auto x = gemm_testing::random_matrix<BFloat16>(64 * kIn, 4);
    const auto product = [&](int64_t n, int team) {
      set_num_threads(team);
      std::vector<BFloat16> y(static_cast<size_t>(n * kOut));
      gemm_q8_0(kBFloat16, n, {blocks.data(), kOut, kIn}, x.data(), kIn, 0, y.data(), kOut);
      return y;
    };
    const std::vector<BFloat16> all = product(64, 1);
    for (const int64_t n : {1, 3, 16, 64}) {
      const std::vector<BFloat16> some = product(n, 2);
      EXPECT_EQ(std::memcmp(static_cast<const void*>(some.data()),
                            static_cast<const void*>(all.data()), some.size() * 2),
                0)
          << n;
    }
  });
  set_num_threads(threads);
}

}  // namespace
}  // namespace tapestry::kernels

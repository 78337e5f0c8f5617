#include "autograd/kernels/gemm/quantized_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "autograd/kernels/gemm/gemm_quantized.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "tests/autograd/kernels/gemm_testing.h"
#include "tests/cpu_levels.h"

namespace tapestry::kernels {
namespace {

std::vector<uint8_t> encoded(BlockFormat format, const std::vector<float>& x, int64_t rows) {
  const auto n = static_cast<int64_t>(x.size()) / rows;
  std::vector<uint8_t> blocks(static_cast<size_t>(rows * block_row_bytes(format, n)));
  EXPECT_TRUE(encode_blocks(format, kFloat32, rows, n, x.data(), n, blocks.data()));
  return blocks;
}

float scale_of_block(const uint8_t* block) {
  Float16 scale;
  std::memcpy(&scale.bits, block, 2);
  return static_cast<float>(scale);
}

/// Number i of a block without its scale.
int number_of_block(BlockFormat format, const uint8_t* block, size_t i) {
  if (format == BlockFormat::kQ8_0) {
    return static_cast<int8_t>(block[2 + i]);
  }
  return (i < 16 ? block[2 + i] & 15 : block[2 + i - 16] >> 4) - 8;
}

class BlockFormats : public ::testing::TestWithParam<BlockFormat> {};

INSTANTIATE_TEST_SUITE_P(Quantized,
                         BlockFormats,
                         ::testing::ValuesIn(kBlockFormats),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(BlockFormatNames, AreThoseOfConfigurations) {
  EXPECT_EQ(block_format("q8_0"), BlockFormat::kQ8_0);
  EXPECT_EQ(block_format("q4_0"), BlockFormat::kQ4_0);
  EXPECT_EQ(block_format("params_dtype"), std::nullopt);
  EXPECT_EQ(block_format(""), std::nullopt);
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
  const std::vector<uint8_t> blocks = encoded(BlockFormat::kQ8_0, x, 1);
  ASSERT_EQ(blocks.size(), 34U);
  EXPECT_EQ(blocks[0], 0x00);  // 1.0 as float16, little-endian
  EXPECT_EQ(blocks[1], 0x3c);
  const std::vector<int> expected = {-127, 1, -1, 2, -3, 0, 127, 0};
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(static_cast<int8_t>(blocks[2 + i]), expected[i]) << i;
  }
}

TEST(Q4Blocks, AreWhatTheFormatSays) {
  std::vector<float> x(32, 0.0F);
  x[0] = 14;
  x[1] = -16;  // the largest has q = 0: the scale is 2
  x[5] = 16;   // would be 16; and is not the first of its size
  x[2] = 1;    // halves go up
  x[3] = -1;
  x[4] = 0.999F;
  x[16] = -14;
  x[21] = 6;
  x[31] = -3.1F;
  const std::vector<uint8_t> blocks = encoded(BlockFormat::kQ4_0, x, 1);
  ASSERT_EQ(blocks.size(), 18U);
  EXPECT_EQ(blocks[0], 0x00);  // 2.0 as float16, little-endian
  EXPECT_EQ(blocks[1], 0x40);
  const std::vector<int> expected = {0x1f, 0x80, 0x89, 0x88, 0x88, 0xbf, 0x88, 0x88,
                                     0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x68};
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(blocks[2 + i], expected[i]) << i;
  }
}

TEST(Q4Blocks, APositiveLargestNumberHasANegativeScale) {
  std::vector<float> x(32, 1.0F);
  x[17] = 4;
  const std::vector<uint8_t> blocks = encoded(BlockFormat::kQ4_0, x, 1);
  EXPECT_EQ(scale_of_block(blocks.data()), -0.5F);
  EXPECT_EQ(blocks[2], 0x66);
  EXPECT_EQ(blocks[3], 0x06);
}

/// The reference encoder as it stands in llama.cpp's description: of one block.
std::vector<uint8_t> reference_q4(const float* x) {
  float largest = 0;
  float most = 0;
  for (int i = 0; i < 32; ++i) {
    if (std::fabs(x[i]) > most) {
      most = std::fabs(x[i]);
      largest = x[i];
    }
  }
  const float d = largest / -8.0F;
  const float inverse = d != 0 ? 1.0F / d : 0.0F;
  std::vector<uint8_t> out(18);
  const Float16 scale(d);
  std::memcpy(out.data(), &scale.bits, 2);
  for (size_t i = 0; i < 16; ++i) {
    const float low = x[i] * inverse;
    const float high = x[16 + i] * inverse;
    const int a = std::min(15, static_cast<int>(low + 8.5F));
    const int b = std::min(15, static_cast<int>(high + 8.5F));
    out[2 + i] = static_cast<uint8_t>(a | b << 4);
  }
  return out;
}

TEST(Q4Blocks, HaveTheReferencesBits) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<float> x(64 * 96);
  for (float& v : x) {
    v = normal(random);
  }
  std::fill_n(x.begin(), 32, 0.0F);  // whose scale is -0
  at_every_cpu_level([&] {
    const std::vector<uint8_t> blocks = encoded(BlockFormat::kQ4_0, x, 64);
    for (size_t i = 0; i < x.size() / 32; ++i) {
      const std::vector<uint8_t> expected = reference_q4(x.data() + 32 * i);
      ASSERT_EQ(std::memcmp(blocks.data() + 18 * i, expected.data(), 18), 0) << i;
    }
  });
}

TEST_P(BlockFormats, ZerosAndTheSmallestNumbers) {
  for (const float tiny : {0.0F, -0.0F, 1e-45F, 1e-39F, 1e-30F}) {
    const std::vector<uint8_t> blocks = encoded(GetParam(), std::vector<float>(32, tiny), 1);
    EXPECT_EQ(scale_of_block(blocks.data()), 0) << tiny;
  }
}

TEST_P(BlockFormats, NumbersAreWithinTheirStepAndTheScalesRounding) {
  const BlockFormat format = GetParam();
  const auto bytes = static_cast<size_t>(block_bytes(format));
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<float> x(7 * 96);
  for (float& v : x) {
    v = normal(random);
  }
  at_every_cpu_level([&] {
    const std::vector<uint8_t> blocks = encoded(format, x, 7);
    const int64_t stride = block_row_bytes(format, 96);
    std::vector<float> back(x.size());
    decode_blocks(format, kFloat32, 7, 96, blocks.data(), stride, back.data(), 96);
    for (size_t i = 0; i < x.size(); ++i) {
      const uint8_t* block = blocks.data() + i / 32 * bytes;
      const float scale = scale_of_block(block);
      // Half a step; with 4 bits a whole one for what would be 8, opposite to the largest.
      const float step = std::fabs(scale) * (format == BlockFormat::kQ8_0 ? 0.5F : 1.0F);
      EXPECT_NEAR(back[i], x[i], step + 128 * std::fabs(scale) * 0x1p-11F) << i;
      const auto q = static_cast<float>(number_of_block(format, block, i % 32));
      EXPECT_EQ(back[i], scale * q) << i;
    }
    // Columns from the second block on, in other dtypes: rounded once.
    std::vector<BFloat16> narrow(7 * 64);
    decode_blocks(format, kBFloat16, 7, 64, blocks.data() + bytes, stride, narrow.data(), 64);
    std::vector<Float16> half(7 * 64);
    decode_blocks(format, kFloat16, 7, 64, blocks.data() + bytes, stride, half.data(), 64);
    for (size_t row = 0; row < 7; ++row) {
      for (size_t i = 0; i < 64; ++i) {
        const float value = back[row * 96 + 32 + i];
        EXPECT_EQ(narrow[row * 64 + i].bits, BFloat16(value).bits);
        EXPECT_EQ(half[row * 64 + i].bits, Float16(value).bits);
      }
    }
  });
}

TEST_P(BlockFormats, EachNumberIsWidenedExactly) {
  const BlockFormat format = GetParam();
  const int64_t count = format == BlockFormat::kQ8_0 ? 256 : 16;
  // Blocks that no encoder gives: every number in every place.
  std::vector<uint8_t> blocks;
  for (int64_t i = 0; i < count; ++i) {
    blocks.insert(blocks.end(), {0x00, 0xbc});  // -1
    for (int64_t j = 0; j < block_bytes(format) - 2; ++j) {
      blocks.push_back(static_cast<uint8_t>(
          format == BlockFormat::kQ8_0 ? i + j : ((i + j) % 16) | ((i + 3 * j + 5) % 16) << 4));
    }
  }
  at_every_cpu_level([&] {
    std::vector<float> wide(static_cast<size_t>(count) * 32);
    decode_blocks(format, kFloat32, 1, count * 32, blocks.data(), 0, wide.data(), count * 32);
    // Products with rows of the unit matrix take single numbers out of a row of blocks.
    std::vector<BFloat16> unit(32 * 32, BFloat16(0.0F));
    for (size_t i = 0; i < 32; ++i) {
      unit[33 * i] = BFloat16(1.0F);
    }
    std::vector<BFloat16> picked(static_cast<size_t>(32 * count));
    gemm_quantized(kBFloat16, 32, {format, blocks.data(), count, 32}, unit.data(), 32, 0,
                   picked.data(), count);
    for (size_t i = 0; i < wide.size(); ++i) {
      const auto q = static_cast<float>(number_of_block(
          format, blocks.data() + i / 32 * static_cast<size_t>(block_bytes(format)), i % 32));
      ASSERT_EQ(wide[i], -q) << i;
      ASSERT_EQ(static_cast<float>(picked[i % 32 * static_cast<size_t>(count) + i / 32]), -q) << i;
    }
  });
}

TEST_P(BlockFormats, SixteenBitsAreEncodedAsTheirValues) {
  std::vector<BFloat16> narrow;
  std::vector<float> wide;
  std::mt19937 random(6);
  for (int i = 0; i < 64; ++i) {
    narrow.emplace_back(static_cast<float>(random() % 1000) * 0.01F - 5);
    wide.push_back(static_cast<float>(narrow.back()));
  }
  std::vector<uint8_t> blocks(static_cast<size_t>(2 * block_bytes(GetParam())));
  ASSERT_TRUE(encode_blocks(GetParam(), kBFloat16, 2, 32, narrow.data(), 32, blocks.data()));
  EXPECT_EQ(blocks, encoded(GetParam(), wide, 2));
}

TEST_P(BlockFormats, WhatHasNoBlockIsReported) {
  std::vector<uint8_t> blocks(static_cast<size_t>(2 * block_bytes(GetParam())));
  const float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {inf, -inf, std::nanf(""), 1e7F, -1e7F, 3e38F}) {
    std::vector<float> x(64, 1.0F);
    x[40] = bad;
    EXPECT_FALSE(encode_blocks(GetParam(), kFloat32, 2, 32, x.data(), 32, blocks.data())) << bad;
  }
}

/// y = x W^T and dx = dy W against loops over the decoded numbers.
template <class T>
void check_products(BlockFormat format, int64_t n, int64_t out, int64_t in) {
  const auto values = gemm_testing::random_matrix<float>(out * in, 3);
  const std::vector<uint8_t> blocks = encoded(format, values, out);
  std::vector<float> w(values.size());
  decode_blocks(format, kFloat32, out, in, blocks.data(), block_row_bytes(format, in), w.data(),
                in);
  const BlockMatrix matrix = {format, blocks.data(), out, in};
  const auto x = gemm_testing::random_matrix<T>(n * (in + 3), 4);
  std::vector<T> y(static_cast<size_t>(n * out), T(0.25F));
  gemm_quantized(dtype_of<T>(), n, matrix, x.data(), in + 3, 1, y.data(), out);
  const auto dy = gemm_testing::random_matrix<T>(n * out, 5);
  std::vector<T> dx(static_cast<size_t>(n * in));
  gemm_quantized_backward(dtype_of<T>(), n, matrix, dy.data(), out, dx.data(), in);
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

TEST_P(BlockFormats, ProductsMatchLoopsOverTheDecodedNumbers) {
  at_every_cpu_level([&] {
    for (const int64_t n : {1, 2, 5, 16, 64, 70}) {
      for (const int64_t out : {1, 7, 65}) {
        for (const int64_t in : {32, 96}) {
          check_products<float>(GetParam(), n, out, in);
          check_products<BFloat16>(GetParam(), n, out, in);
          check_products<Float16>(GetParam(), n, out, in);
        }
      }
    }
  });
}

TEST_P(BlockFormats, ProductsWithSeveralPartsOfALargeMatrix) {
  check_products<float>(GetParam(), 66, 300,
                        32 * 130);  // more than what is decoded at a time, both ways
  check_products<BFloat16>(GetParam(), 66, 700, 32 * 160);
}

TEST_P(BlockFormats, ARowOfAProductDependsOnNeitherCompanionsNorThreads) {
  const int threads = num_threads();
  at_every_cpu_level([&] {
    constexpr int64_t kOut = 901;
    constexpr int64_t kIn = 320;
    const std::vector<uint8_t> blocks =
        encoded(GetParam(), gemm_testing::random_matrix<float>(kOut * kIn, 3), kOut);
    const auto x = gemm_testing::random_matrix<BFloat16>(64 * kIn, 4);
    const auto product = [&](int64_t n, int team) {
      set_num_threads(team);
      std::vector<BFloat16> y(static_cast<size_t>(n * kOut));
      gemm_quantized(kBFloat16, n, {GetParam(), blocks.data(), kOut, kIn}, x.data(), kIn, 0,
                     y.data(), kOut);
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

/// The products of groups have the bits of products of their own.
template <class T>
void check_groups(BlockFormat format, const std::vector<int64_t>& ends, int64_t out, int64_t in) {
  const auto groups = static_cast<int64_t>(ends.size());
  const int64_t n = ends.back();
  const auto blocks =
      encoded(format, gemm_testing::random_matrix<float>(groups * out * in, 3), groups * out);
  const BlockMatrix one = {format, blocks.data(), out, in};
  const auto x = gemm_testing::random_matrix<T>(n * in, 4);
  const auto dy = gemm_testing::random_matrix<T>(n * out, 5);
  std::vector<T> y(static_cast<size_t>(n * out), T(0.25F));
  std::vector<T> dx(static_cast<size_t>(n * in));
  std::vector<T> own_y = y;
  std::vector<T> own_dx = dx;
  grouped_gemm_quantized(dtype_of<T>(), ends, one, x.data(), in, 1, y.data(), out);
  grouped_gemm_quantized_backward(dtype_of<T>(), ends, one, dy.data(), out, dx.data(), in);
  int64_t begin = 0;
  for (int64_t e = 0; e < groups; ++e) {
    const int64_t end = ends[static_cast<size_t>(e)];
    BlockMatrix own = one;
    own.blocks = blocks.data() + e * out * block_row_bytes(format, in);
    gemm_quantized(dtype_of<T>(), end - begin, own, x.data() + begin * in, in, 1,
                   own_y.data() + begin * out, out);
    gemm_quantized_backward(dtype_of<T>(), end - begin, own, dy.data() + begin * out, out,
                            own_dx.data() + begin * in, in);
    begin = end;
  }
  // Large products are divided in another way by a team than by one of its members.
  const double item = sizeof(T) == 4 ? 6e-8 : 0x1p-8;
  for (size_t i = 0; i < y.size(); ++i) {
    const double value = gemm_testing::as_double(own_y[i]);
    ASSERT_NEAR(gemm_testing::as_double(y[i]), value,
                2 * item * std::abs(value) + 6e-8 * static_cast<double>(in))
        << i;
  }
  for (size_t i = 0; i < dx.size(); ++i) {
    const double value = gemm_testing::as_double(own_dx[i]);
    ASSERT_NEAR(gemm_testing::as_double(dx[i]), value,
                2 * item * std::abs(value) + 6e-8 * static_cast<double>(out))
        << i;
  }
}

TEST_P(BlockFormats, GroupsAreProductsOfTheirOwn) {
  at_every_cpu_level([&] {
    for (const std::vector<int64_t>& ends : std::vector<std::vector<int64_t>>{
             {3}, {0, 0}, {1, 2, 3, 4, 5, 6, 7, 8}, {0, 5, 5, 75, 80, 80}, {100, 101, 103}}) {
      check_groups<float>(GetParam(), ends, 65, 96);
      check_groups<BFloat16>(GetParam(), ends, 65, 96);
    }
  });
}

}  // namespace
}  // namespace tapestry::kernels

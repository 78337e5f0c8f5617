#include "interop/gguf/gguf_types.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "autograd/kernels/machine/dtype.h"
#include "autograd/tensor/error.h"
#include "tests/message_of.h"

namespace tapestry {
namespace {

constexpr float kInfinite = std::numeric_limits<float>::infinity();

std::vector<std::byte> encoded(GgufType type, const std::vector<float>& values) {
  std::vector<std::byte> out(gguf_bytes(type, static_cast<int64_t>(values.size())));
  EXPECT_EQ(encode_gguf(type, values, out.data()), std::nullopt);
  return out;
}

uint16_t half_at(const std::vector<std::byte>& bytes, size_t at) {
  uint16_t bits = 0;
  std::memcpy(&bits, bytes.data() + at, sizeof(bits));
  return bits;
}

TEST(GgufTypes, NamesAndSizes) {
  for (const char* name : {"F32", "F16", "BF16", "Q8_0"}) {
    EXPECT_EQ(name_of(gguf_type(name)), name);
  }
  EXPECT_EQ(message_of<ValueError>([] { gguf_type("q8"); }),
            "type q8: expected F32, F16, BF16 or Q8_0");
  EXPECT_EQ(gguf_bytes(GgufType::kF32, 64), 256U);
  EXPECT_EQ(gguf_bytes(GgufType::kBF16, 64), 128U);
  EXPECT_EQ(gguf_bytes(GgufType::kQ8_0, 64), 68U);
  EXPECT_FALSE(gguf_can_hold(GgufType::kQ8_0, 48));
  EXPECT_TRUE(gguf_can_hold(GgufType::kF16, 48));
  EXPECT_THROW(gguf_bytes(GgufType::kQ8_0, 48), RuntimeError);
}

TEST(GgufTypes, SixteenBitsAreRoundedToEven) {
  // Halfway between two neighbours: 1 + 2^-11 in float16, 1 + 2^-8 in bfloat16.
  const std::vector<std::byte> f16 = encoded(GgufType::kF16, {1 + 0x1p-11F, 1 + 0x3p-11F, -2.5F});
  EXPECT_EQ(half_at(f16, 0), 0x3c00);
  EXPECT_EQ(half_at(f16, 2), 0x3c02);
  EXPECT_EQ(half_at(f16, 4), 0xc100);
  const std::vector<std::byte> bf16 = encoded(GgufType::kBF16, {1 + 0x1p-8F, 1 + 0x3p-8F, -2.5F});
  EXPECT_EQ(half_at(bf16, 0), 0x3f80);
  EXPECT_EQ(half_at(bf16, 2), 0x3f82);
  EXPECT_EQ(half_at(bf16, 4), 0xc020);
}

TEST(GgufTypes, BlocksOfEightBitsRoundHalvesAwayFromZero) {
  // max|x| = 127 makes the scale 1, so that q is x rounded.
  std::vector<float> x(64, 0.0F);
  const std::vector<float> first = {127, 0.5F, -0.5F, 1.5F, 2.5F, -2.5F, 0.4999F, -126.5F, -1};
  std::copy(first.begin(), first.end(), x.begin());
  const std::vector<std::byte> bytes = encoded(GgufType::kQ8_0, x);
  EXPECT_EQ(half_at(bytes, 0), Float16(1.0F).bits);
  const std::vector<int> wanted = {127, 1, -1, 2, 3, -3, 0, -127, -1};
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(static_cast<int8_t>(bytes[2 + i]), wanted[i]) << i;
  }
  // A block of zeros has the scale 0.
  for (size_t i = 34; i < 68; ++i) {
    EXPECT_EQ(bytes[i], std::byte{0});
  }
}

TEST(GgufTypes, TheFirstValueThatDoesNotFitIsTold) {
  std::vector<float> x(2048, 1.0F);
  std::vector<std::byte> out(gguf_bytes(GgufType::kF32, 2048));
  x[1500] = 65520;  // the smallest that float16 rounds to infinity
  EXPECT_EQ(encode_gguf(GgufType::kF16, x, out.data()), 1500U);
  EXPECT_EQ(encode_gguf(GgufType::kBF16, x, out.data()), std::nullopt);
  EXPECT_EQ(encode_gguf(GgufType::kQ8_0, x, out.data()), std::nullopt);
  x[1500] = 65519;
  EXPECT_EQ(encode_gguf(GgufType::kF16, x, out.data()), std::nullopt);
  x[1500] = std::numeric_limits<float>::max();
  EXPECT_EQ(encode_gguf(GgufType::kBF16, x, out.data()), 1500U);
  EXPECT_EQ(encode_gguf(GgufType::kQ8_0, x, out.data()), 1500U / 32 * 32);
  for (const float bad : {kInfinite, -kInfinite, std::numeric_limits<float>::quiet_NaN()}) {
    x[1500] = bad;
    EXPECT_EQ(encode_gguf(GgufType::kF16, x, out.data()), 1500U);
    EXPECT_EQ(encode_gguf(GgufType::kQ8_0, x, out.data()), 1500U / 32 * 32);
    EXPECT_EQ(encode_gguf(GgufType::kF32, x, out.data()), std::nullopt);
  }
}

std::vector<float> decoded(GgufType type, const std::vector<uint8_t>& bytes, size_t count) {
  std::vector<float> out(count);
  decode_gguf(type, std::as_bytes(std::span<const uint8_t>(bytes)), out);
  return out;
}

void put_half(std::vector<uint8_t>& bytes, float value) {
  const Float16 half(value);
  bytes.push_back(static_cast<uint8_t>(half.bits & 255U));
  bytes.push_back(static_cast<uint8_t>(half.bits >> 8U));
}

TEST(GgufTypes, BlocksOf8BitsAreScaleTimesInteger) {
  std::vector<uint8_t> bytes;
  put_half(bytes, 0.25F);
  std::vector<float> expected;
  for (int i = 0; i < 32; ++i) {
    const int q = i == 0 ? -128 : i * 8 - 124;
    bytes.push_back(static_cast<uint8_t>(q));
    expected.push_back(0.25F * static_cast<float>(q));
  }
  EXPECT_EQ(decoded(GgufType::kQ8_0, bytes, 32), expected);
}

TEST(GgufTypes, BlocksOf4BitsHaveTheFirst16InTheLowHalves) {
  std::vector<uint8_t> bytes;
  put_half(bytes, 0.5F);
  std::vector<float> expected(32);
  for (int i = 0; i < 16; ++i) {
    bytes.push_back(static_cast<uint8_t>(i | (15 - i) << 4));
    expected[static_cast<size_t>(i)] = 0.5F * static_cast<float>(i - 8);
    expected[static_cast<size_t>(16 + i)] = 0.5F * static_cast<float>(7 - i);
  }
  EXPECT_EQ(decoded(GgufType::kQ4_0, bytes, 32), expected);
}

TEST(GgufTypes, SuperBlocksOf4BitsHaveScalesAndMinimaOf6) {
  const std::vector<int> s = {1, 2, 3, 63, 17, 33, 62, 5};
  const std::vector<int> m = {0, 1, 2, 63, 16, 32, 48, 7};
  std::vector<uint8_t> bytes;
  put_half(bytes, 1.0F);
  put_half(bytes, 0.5F);
  for (size_t j = 0; j < 4; ++j) {
    bytes.push_back(static_cast<uint8_t>(s[j] | s[j + 4] >> 4 << 6));
  }
  for (size_t j = 0; j < 4; ++j) {
    bytes.push_back(static_cast<uint8_t>(m[j] | m[j + 4] >> 4 << 6));
  }
  for (size_t j = 4; j < 8; ++j) {
    bytes.push_back(static_cast<uint8_t>((s[j] & 15) | (m[j] & 15) << 4));
  }
  const auto q = [](int i) { return i * 7 % 16; };
  for (int part = 0; part < 256; part += 64) {
    for (int i = part; i < part + 32; ++i) {
      bytes.push_back(static_cast<uint8_t>(q(i) | q(i + 32) << 4));
    }
  }
  std::vector<float> expected;
  for (int i = 0; i < 256; ++i) {
    const auto j = static_cast<size_t>(i / 32);
    expected.push_back(static_cast<float>(s[j] * q(i)) - 0.5F * static_cast<float>(m[j]));
  }
  EXPECT_EQ(decoded(GgufType::kQ4_K, bytes, 256), expected);
}

TEST(GgufTypes, SuperBlocksOf6BitsHaveTheHighBitsApart) {
  const auto q = [](int i) { return (i * 5 + i / 64) % 64; };
  std::vector<uint8_t> low;
  std::vector<uint8_t> high;
  for (int half = 0; half < 256; half += 128) {
    for (int i = half; i < half + 64; ++i) {
      low.push_back(static_cast<uint8_t>((q(i) & 15) | (q(i + 64) & 15) << 4));
    }
    for (int i = half; i < half + 32; ++i) {
      high.push_back(static_cast<uint8_t>(q(i) >> 4 | q(i + 32) >> 4 << 2 | q(i + 64) >> 4 << 4 |
                                          q(i + 96) >> 4 << 6));
    }
  }
  std::vector<uint8_t> bytes = low;
  bytes.insert(bytes.end(), high.begin(), high.end());
  for (int k = 0; k < 16; ++k) {
    bytes.push_back(static_cast<uint8_t>(k * 17 - 128));
  }
  put_half(bytes, 0.125F);
  std::vector<float> expected;
  for (int i = 0; i < 256; ++i) {
    expected.push_back(0.125F * static_cast<float>(i / 16 * 17 - 128) *
                       static_cast<float>(q(i) - 32));
  }
  EXPECT_EQ(decoded(GgufType::kQ6_K, bytes, 256), expected);
}

TEST(GgufTypes, WhatIsReadAloneIsNotWritten) {
  EXPECT_THROW(gguf_type("Q4_K"), ValueError);
  EXPECT_THROW(gguf_file_type(GgufType::kQ6_K), RuntimeError);
  std::vector<std::byte> out(32);
  EXPECT_THROW(encode_gguf(GgufType::kQ4_0, std::vector<float>(32), out.data()), RuntimeError);
  EXPECT_THROW(decoded(GgufType::kQ4_0, std::vector<uint8_t>(17), 32), RuntimeError);
  EXPECT_EQ(gguf_type_of(14), GgufType::kQ6_K);
  EXPECT_EQ(gguf_type_of(13), std::nullopt);
  EXPECT_EQ(shown_gguf_type(13), "Q5_K (13)");
  EXPECT_EQ(shown_gguf_type(777), "777");
}

}  // namespace
}  // namespace tapestry

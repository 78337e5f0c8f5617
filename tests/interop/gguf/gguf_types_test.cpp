#include "interop/gguf/gguf_types.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
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

}  // namespace
}  // namespace tapestry

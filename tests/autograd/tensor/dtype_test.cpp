#include "autograd/tensor/dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;

// A small binary floating type, in exact double arithmetic.
struct Format {
  int mantissa_bits;  // stored
  int min_exponent;   // of the smallest normal number, 2^min_exponent
  int max_exponent;   // of the largest binade
};
constexpr Format kHalf = {10, -14, 15};
constexpr Format kBrain = {7, -126, 127};

// Nearest value of the format, ties to even, overflow to infinity; from the definition.
double rounded(double x, const Format& format) {
  if (x == 0 || !std::isfinite(x)) {
    return x;
  }
  int exponent = 0;
  std::frexp(x, &exponent);  // |x| in [2^(exponent-1), 2^exponent)
  const int ulp_exponent = std::max(exponent - 1, format.min_exponent) - format.mantissa_bits;
  const double scaled = std::ldexp(x, -ulp_exponent);
  const double result = std::ldexp(std::nearbyint(scaled), ulp_exponent);
  const double limit =
      std::ldexp(2.0 - std::ldexp(1.0, -format.mantissa_bits), format.max_exponent);
  return std::abs(result) > limit ? std::copysign(INFINITY, x) : result;
}

// Value of a bit pattern, from the definition.
double decoded(uint16_t bits, const Format& format) {
  const int exponent_bits = 15 - format.mantissa_bits;
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const int exponent = (bits >> format.mantissa_bits) & ((1 << exponent_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * INFINITY : NAN;
  }
  if (exponent == 0) {
    return sign * std::ldexp(mantissa, format.min_exponent - format.mantissa_bits);
  }
  return sign * std::ldexp((1 << format.mantissa_bits) + mantissa,
                           exponent - 1 + format.min_exponent - format.mantissa_bits);
}

template <class T>
void check_all_patterns(const Format& format) {
  for (int pattern = 0; pattern < 65536; ++pattern) {
    T value;
    value.bits = static_cast<uint16_t>(pattern);
    const double expected = decoded(value.bits, format);
    const auto widened = static_cast<float>(value);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(widened)) << pattern;
      EXPECT_TRUE(std::isnan(static_cast<float>(T(widened)))) << pattern;
      continue;
    }
    ASSERT_EQ(static_cast<double>(widened), expected) << pattern;
    ASSERT_EQ(T(widened).bits, value.bits) << pattern;
    // Just below, at and just above the middle to the next value: where roundings go wrong.
    const double next = decoded(static_cast<uint16_t>(pattern + 1), format);
    if (pattern % 0x8000 == 0x7fff || !std::isfinite(next) || !std::isfinite(expected)) {
      continue;
    }
    const auto middle = static_cast<float>((expected + next) / 2);
    for (const float x :
         {std::nextafter(middle, -INFINITY), middle, std::nextafter(middle, INFINITY)}) {
      const double result = static_cast<float>(T(x));
      ASSERT_EQ(result, rounded(x, format)) << pattern << " " << x;
      ASSERT_EQ(std::signbit(result), std::signbit(x)) << pattern << " " << x;
    }
  }
}

TEST(Float16, EveryPatternAndEveryMiddle) { check_all_patterns<Float16>(kHalf); }
TEST(BFloat16, EveryPatternAndEveryMiddle) { check_all_patterns<BFloat16>(kBrain); }

TEST(Float16, OverflowGivesInfinity) {
  EXPECT_EQ(static_cast<float>(Float16(65504.0F)), 65504.0F);
  EXPECT_EQ(static_cast<float>(Float16(65519.99F)), 65504.0F);
  EXPECT_EQ(static_cast<float>(Float16(65520.0F)), INFINITY);
  EXPECT_EQ(static_cast<float>(Float16(-1e30F)), -INFINITY);
  EXPECT_EQ(static_cast<float>(Float16(0x1p-25F)), 0.0F);  // a tie, to even
  EXPECT_EQ(static_cast<float>(Float16(0x1.8p-25F)), 0x1p-24F);
}

TEST(BFloat16, OverflowGivesInfinity) {
  EXPECT_EQ(static_cast<float>(BFloat16(3.3895314e38F)), 3.3895314e38F);
  EXPECT_EQ(static_cast<float>(BFloat16(3.4e38F)), INFINITY);
  EXPECT_EQ(static_cast<float>(BFloat16(1.00390625F)), 1.0F);       // a tie, to even
  EXPECT_EQ(static_cast<float>(BFloat16(1.01171875F)), 1.015625F);  // a tie, to even
}

// The vector kernels convert like the scalar code, for every float that differs in its upper bits.
template <class T>
void check_kernel(DType dtype) {
  std::vector<float> values;
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    for (const uint32_t lower :
         {0x0000U, 0x0001U, 0x0fffU, 0x1000U, 0x1001U, 0x7fffU, 0x8000U, 0x8001U}) {
      values.push_back(std::bit_cast<float>((upper << 16U) | lower));
    }
  }
  const Tensor x = tensor(values, {static_cast<int64_t>(values.size())});
  const Tensor y = x.to(dtype);
  const Tensor back = y.to(kFloat32);
  const auto* bits = y.data<T>();
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) {
      ASSERT_TRUE(std::isnan(static_cast<float>(bits[i]))) << i;
    } else {
      ASSERT_EQ(bits[i].bits, T(values[i]).bits) << values[i];
    }
    const auto widened = static_cast<float>(bits[i]);
    ASSERT_TRUE(back.data<float>()[i] == widened || std::isnan(widened)) << i;
  }
}

TEST(Float16, KernelsConvertLikeTheScalarCode) { check_kernel<Float16>(kFloat16); }
TEST(BFloat16, KernelsConvertLikeTheScalarCode) { check_kernel<BFloat16>(kBFloat16); }

TEST(DType, SizesAndNames) {
  EXPECT_EQ(size_of(kBool), 1);
  EXPECT_EQ(size_of(kInt32), 4);
  EXPECT_EQ(size_of(kInt64), 8);
  EXPECT_EQ(size_of(kFloat16), 2);
  EXPECT_EQ(size_of(kBFloat16), 2);
  EXPECT_EQ(size_of(kFloat32), 4);
  EXPECT_EQ(size_of(kFloat64), 8);
  EXPECT_EQ(size_of(kInt8), 1);
  EXPECT_EQ(size_of(kUInt8), 1);
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(parse_dtype(name_of(dtype)), dtype);
    EXPECT_EQ(is_floating(dtype), i >= 3 && i <= 6) << name_of(dtype);
    EXPECT_EQ(is_integral(dtype), i == 1 || i == 2 || i >= 7) << name_of(dtype);
    EXPECT_EQ(is_index(dtype), i == 1 || i == 2) << name_of(dtype);
  }
}

TEST(DType, ParseNamesTheKnownOnes) {
  try {
    parse_dtype("float8");
    FAIL();
  } catch (const ValueError& e) {
    EXPECT_THAT(e.what(), HasSubstr("float8"));
    EXPECT_THAT(e.what(), HasSubstr("bfloat16"));
  }
}

TEST(DType, Promotion) {
  // PyTorch's table, but for uint8 with int8, which is int16 there.
  const DType order[] = {kBool,    kUInt8,    kInt8,    kInt32,  kInt64,
                         kFloat16, kBFloat16, kFloat32, kFloat64};
  const DType table[9][9] = {
      {kBool, kUInt8, kInt8, kInt32, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64},
      {kUInt8, kUInt8, kInt32, kInt32, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64},
      {kInt8, kInt32, kInt8, kInt32, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64},
      {kInt32, kInt32, kInt32, kInt32, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64},
      {kInt64, kInt64, kInt64, kInt64, kInt64, kFloat16, kBFloat16, kFloat32, kFloat64},
      {kFloat16, kFloat16, kFloat16, kFloat16, kFloat16, kFloat16, kFloat32, kFloat32, kFloat64},
      {kBFloat16, kBFloat16, kBFloat16, kBFloat16, kBFloat16, kFloat32, kBFloat16, kFloat32,
       kFloat64},
      {kFloat32, kFloat32, kFloat32, kFloat32, kFloat32, kFloat32, kFloat32, kFloat32, kFloat64},
      {kFloat64, kFloat64, kFloat64, kFloat64, kFloat64, kFloat64, kFloat64, kFloat64, kFloat64},
  };
  for (int i = 0; i < 9; ++i) {
    for (int j = 0; j < 9; ++j) {
      EXPECT_EQ(promote(order[i], order[j]), table[i][j]) << name_of(order[i]) << name_of(order[j]);
    }
  }
}

TEST(DType, PromotionWithNumbersAndScalars) {
  EXPECT_EQ(promote_scalar(kInt64, true), kFloat32);
  EXPECT_EQ(promote_scalar(kBool, true), kFloat32);
  EXPECT_EQ(promote_scalar(kInt32, false), kInt32);
  EXPECT_EQ(promote_scalar(kBFloat16, true), kBFloat16);

  const Tensor wide = ones({2}, kFloat16);
  EXPECT_EQ(add(wide, scalar(1, kFloat64)).dtype(), kFloat16);  // a scalar yields to axes ...
  EXPECT_EQ(add(ones({2}, kInt32), scalar(1, kFloat64)).dtype(), kFloat64);  // ... of its category
  EXPECT_EQ(add(ones({2}, kInt32), scalar(1, kInt64)).dtype(), kInt32);
  EXPECT_EQ(add(ones({2}, kBool), scalar(1, kInt64)).dtype(), kInt64);
  EXPECT_EQ(add(scalar(1, kFloat32), scalar(1, kFloat64)).dtype(), kFloat64);
  EXPECT_EQ(add(wide, ones({1}, kFloat64)).dtype(), kFloat64);  // [1] has an axis
  EXPECT_EQ(add(ones({2}, kInt64), 1.5).dtype(), kFloat32);
  EXPECT_EQ(add(ones({2}, kInt64), 2).dtype(), kInt64);
  EXPECT_EQ(div(ones({2}, kInt64), ones({2}, kInt64)).dtype(), kFloat32);
}

TEST(DType, CastsBetweenAllPairs) {
  const std::vector<double> values = {0, 1, 2, 3, 100};
  for (int i = 0; i < kNumDTypes; ++i) {
    for (int j = 0; j < kNumDTypes; ++j) {
      const auto from = static_cast<DType>(i);
      const auto to = static_cast<DType>(j);
      const Tensor x = tensor(values, {5}).to(from);
      std::vector<double> expected = values;
      for (double& v : expected) {
        v = from == kBool || to == kBool ? (v != 0 ? 1.0 : 0.0) : v;
      }
      EXPECT_EQ(x.to(to).to_vector<double>(), expected) << name_of(from) << " to " << name_of(to);
    }
  }
  EXPECT_EQ(tensor({-1.7F, 1.7F}).to(kInt64).to_vector<int64_t>(), (std::vector<int64_t>{-1, 1}));
}

TEST(DType, CheckFloatingNamesTheOp) {
  EXPECT_NO_THROW(check_floating("tanh", kBFloat16));
  try {
    check_floating("tanh", kInt64);
    FAIL();
  } catch (const TypeError& e) {
    EXPECT_STREQ(e.what(), "tanh: needs a floating dtype, got int64");
  }
}

}  // namespace
}  // namespace tapestry

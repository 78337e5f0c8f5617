// The inline functions of isa/simd.h, compiled here for a level of their own.
#define TAPESTRY_ISA simd_test
#include "autograd/kernels/isa/simd.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace tapestry::kernels::simd_test {
namespace {

float exp2_of(float x) { return exp2(broadcast(x))[0]; }

TEST(Simd, Exp2WithinStatedError) {
  double worst = 0;
  for (uint64_t bits = 0; bits < (1ULL << 32U); bits += 2039) {  // a prime: all exponents, signs
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (x > 127.0F) {
      continue;
    }
    const float got = exp2_of(x);
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(got));
    } else if (x < -126.0F) {
      ASSERT_EQ(got, 0.0F) << x;
    } else {
      // In units of the last place of the result.
      const double expected = std::exp2(static_cast<double>(x));
      worst = std::max(worst, std::abs(got - expected) / std::ldexp(1, std::ilogb(expected) - 23));
    }
  }
  EXPECT_LT(worst, 1.4);
  EXPECT_EQ(exp2_of(0.0F), 1.0F);
  EXPECT_EQ(exp2_of(-3.0F), 0.125F);
  EXPECT_EQ(exp2_of(-std::numeric_limits<float>::infinity()), 0.0F);
  EXPECT_EQ(exp2(broadcast(-1.5))[0], std::exp2(-1.5));
}

TEST(Simd, LargerOfTwoIsTheSecondWhereOneIsNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(larger_of(broadcast(1.0F), broadcast(2.0F))[0], 2.0F);
  EXPECT_EQ(larger_of(broadcast(2.0F), broadcast(1.0F))[0], 2.0F);
  EXPECT_EQ(larger_of(broadcast(nan), broadcast(1.0F))[0], 1.0F);
  EXPECT_TRUE(std::isnan(larger_of(broadcast(1.0F), broadcast(nan))[0]));
}

template <class C>
void expect_transposes() {
  constexpr int64_t kRows = 2 * kLanes<C>;
  constexpr int64_t kColumns = 3 * kLanes<C>;
  std::vector<C> in(kRows * (kColumns + 1));
  for (size_t i = 0; i < in.size(); ++i) {
    in[i] = static_cast<C>(i);
  }
  std::vector<C> out(kColumns * (kRows + 2));
  transpose(kRows, kColumns, in.data(), kColumns + 1, out.data(), kRows + 2);
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) {
      ASSERT_EQ(out[j * (kRows + 2) + i], in[i * (kColumns + 1) + j]) << i << ", " << j;
    }
  }
}

TEST(Simd, Transpose) {
  expect_transposes<float>();
  expect_transposes<double>();
}

}  // namespace
}  // namespace tapestry::kernels::simd_test

// The inline functions of isa/vec_math.h, compiled here for a level of their own.
#define TAPESTRY_ISA vec_math_test
#include "autograd/kernels/isa/vec_math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace tapestry::kernels::vec_math_test {
namespace {

TEST(VecMath, ExpWithinStatedError) {
  double worst = 0;
  for (uint64_t bits = 0; bits < (1ULL << 32U); bits += 2039) {  // a prime: all exponents, signs
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    const double expected = std::exp(static_cast<double>(x));
    const float got = fast_exp(x);
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(got));
    } else if (expected > std::numeric_limits<float>::max()) {
      ASSERT_GE(got, std::numeric_limits<float>::max()) << x;
    } else if (expected < 0x1p-126) {
      ASSERT_NEAR(got, expected, 0x1p-149) << x;
    } else {
      worst = std::max(worst, std::abs(got / expected - 1));
    }
  }
  EXPECT_LT(worst, 2e-7);
  RecordProperty("worst_relative_error", std::to_string(worst * 1e9) + "e-9");
}

TEST(VecMath, ExpOfSpecialValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(fast_exp(0.0F), 1.0F);
  EXPECT_EQ(fast_exp(-0.0F), 1.0F);
  EXPECT_EQ(fast_exp(kInfinity), kInfinity);
  EXPECT_EQ(fast_exp(1e30F), kInfinity);
  EXPECT_EQ(fast_exp(-kInfinity), 0.0F);
  EXPECT_EQ(fast_exp(-1e30F), 0.0F);
}

}  // namespace
}  // namespace tapestry::kernels::vec_math_test

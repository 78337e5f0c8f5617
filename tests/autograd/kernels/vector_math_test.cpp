// The inline functions of isa/vector_math.h, compiled here for a level of their own.
#define TAPESTRY_ISA vector_math_test
#include "autograd/kernels/isa/vector_math.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace tapestry::kernels::vector_math_test {
namespace {

TEST(VectorMath, ExpWithinStatedError) {
  double worst = 0;
  for (uint64_t bits = 0; bits < (1ULL << 32U); bits += 2039) {  // a prime: all exponents, signs
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    const double expected = std::exp(static_cast<double>(x));
    const float got = exp(x);
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

TEST(VectorMath, ExpOfSpecialValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp(0.0F), 1.0F);
  EXPECT_EQ(exp(-0.0F), 1.0F);
  EXPECT_EQ(exp(kInfinity), kInfinity);
  EXPECT_EQ(exp(1e30F), kInfinity);
  EXPECT_EQ(exp(-kInfinity), 0.0F);
  EXPECT_EQ(exp(-1e30F), 0.0F);
}

}  // namespace
}  // namespace tapestry::kernels::vector_math_test

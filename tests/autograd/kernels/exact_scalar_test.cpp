#include "autograd/kernels/exact/exact_scalar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace tapestry::kernels {
namespace {

// Numbers of all sizes and both signs.
std::vector<double> numbers(size_t count, int seed) {
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  std::uniform_int_distribution<int> exponent(-60, 60);
  std::normal_distribution<double> mantissa;
  std::vector<double> out;
  for (size_t i = 0; i < count; ++i) {
    out.push_back(std::ldexp(mantissa(random), exponent(random)));
  }
  return out;
}

ExactSum sum_of(std::span<const double> terms) {
  ExactSum sum;
  for (const double term : terms) {
    sum.add(term);
  }
  return sum;
}

uint64_t bits(double x) { return std::bit_cast<uint64_t>(x); }

TEST(ExactSum, OneTermIsItself) {
  for (const double x :
       {0.0, 1.0, -1.0, 0.1, -3e300, 5e-324, -5e-324, 2.2e-308, 1e-310,
        std::numeric_limits<double>::max(), std::numeric_limits<double>::lowest()}) {
    EXPECT_EQ(bits(sum_of(std::array{x}).value()), bits(x)) << x;
  }
  EXPECT_EQ(bits(ExactSum().value()), bits(0.0));
}

TEST(ExactSum, RoundsOnceToEven) {
  const double ulp = std::numeric_limits<double>::epsilon();
  EXPECT_EQ(sum_of(std::array{1.0, ulp / 2}).value(), 1.0);  // a tie
  EXPECT_EQ(sum_of(std::array{1.0 + ulp, ulp / 2}).value(), 1.0 + 2 * ulp);
  EXPECT_EQ(sum_of(std::array{1.0, ulp / 2, 5e-324}).value(), 1.0 + ulp);  // just above one
  EXPECT_EQ(sum_of(std::array{1.0, ulp / 2, -5e-324}).value(), 1.0);
  EXPECT_EQ(sum_of(std::array{1e300, 1.0, -1e300}).value(), 1.0);
  EXPECT_EQ(sum_of(std::array{-1e300, -0.1, 1e300}).value(), -0.1);
}

TEST(ExactSum, AnyOrderAndAnyGroupsHaveTheSameBits) {
  std::vector<double> terms = numbers(3000, 1);
  const double expected = sum_of(terms).value();
  std::mt19937_64 random(2);
  for (int round = 0; round < 5; ++round) {
    std::shuffle(terms.begin(), terms.end(), random);
    const std::span<const double> all(terms);
    const size_t cut = 17 + 500 * static_cast<size_t>(round);
    ExactSum merged = sum_of(all.first(cut));
    merged.add(sum_of(all.subspan(cut)));
    EXPECT_EQ(bits(merged.value()), bits(expected));

    // As over two ranks, whose words are added.
    std::array<double, ExactSum::kWords> first;
    std::array<double, ExactSum::kWords> second;
    sum_of(all.first(cut)).write_words(first);
    sum_of(all.subspan(cut)).write_words(second);
    for (size_t i = 0; i < first.size(); ++i) {
      first[i] += second[i];
    }
    ExactSum of_words;
    of_words.add_words(first);
    EXPECT_EQ(bits(of_words.value()), bits(expected));
  }
}

TEST(ExactSum, WhatIsNoNumberTravels) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(sum_of(std::array{1.0, infinity}).value(), infinity);
  EXPECT_EQ(sum_of(std::array{-infinity, 1.0}).value(), -infinity);
  EXPECT_TRUE(std::isnan(sum_of(std::array{infinity, -infinity}).value()));
  ExactSum nan = sum_of(std::array{std::numeric_limits<double>::quiet_NaN()});
  std::array<double, ExactSum::kWords> words;
  nan.write_words(words);
  ExactSum other = sum_of(std::array{1.0});
  other.add_words(words);
  EXPECT_TRUE(std::isnan(other.value()));
  const double largest = std::numeric_limits<double>::max();
  EXPECT_EQ(sum_of(std::array{largest, largest}).value(), infinity);
  EXPECT_EQ(sum_of(std::array{largest, largest, -largest}).value(), largest);
}

}  // namespace
}  // namespace tapestry::kernels

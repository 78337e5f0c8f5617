#include "autograd/kernels/exact/exact_squares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "autograd/kernels/machine/team.h"
#include "tests/cpu_levels.h"

namespace tapestry::kernels {
namespace {

// Of very different magnitudes: 2^-spread to 1, and some zeros.
std::vector<float> spread_numbers(int64_t n, int spread, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> mantissa(-1, 1);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& value : x) {
    const int exponent = static_cast<int>(random() % static_cast<uint32_t>(spread));
    value = random() % 16 == 0 ? 0.0F : std::ldexp(mantissa(random), -exponent);
  }
  return x;
}

// As ranks would, each having a part of the elements.
double norm_of_parts(const std::vector<float>& x, const std::vector<int64_t>& cuts) {
  double largest = 0;
  const auto each_part = [&](const auto& f) {
    int64_t begin = 0;
    for (const int64_t end : cuts) {
      f(end - begin, x.data() + begin);
      begin = end;
    }
    f(static_cast<int64_t>(x.size()) - begin, x.data() + begin);
  };
  each_part([&](int64_t n, const float* part) {
    largest = std::max<double>(largest, largest_magnitude(n, part));
  });
  ExactSquares sum = {};
  each_part([&](int64_t n, const float* part) {
    const ExactSquares own = exact_squares(n, part, largest);
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += own[i];
    }
  });
  return exact_norm(sum, largest);
}

double true_norm(const std::vector<float>& x) {
  long double sum = 0;
  for (const float value : x) {
    sum += static_cast<long double>(value) * value;
  }
  return static_cast<double>(std::sqrt(sum));
}

TEST(ExactSquares, AnyOrderAnyCutAnyLevelGiveOneNorm) {
  std::vector<float> x = spread_numbers(40003, 60, 1);
  const double expected = norm_of_parts(x, {});
  EXPECT_NEAR(expected, true_norm(x), 1e-14 * expected);
  const int threads = num_threads();
  std::mt19937 random(2);
  at_every_cpu_level([&] {
    for (const int team : {1, 3}) {
      set_num_threads(team);
      EXPECT_EQ(norm_of_parts(x, {}), expected);
      EXPECT_EQ(norm_of_parts(x, {1, 17, 1024, 5000, 39999}), expected);
      std::shuffle(x.begin(), x.end(), random);
      EXPECT_EQ(norm_of_parts(x, {}), expected);
      EXPECT_EQ(norm_of_parts(x, {20000}), expected);
    }
  });
  set_num_threads(threads);
}

TEST(ExactSquares, HoldAtBothEndsOfFloat32) {
  for (const double scale : {0x1p-140, 0x1p-100, 1.0, 0x1p100, 0x1p127}) {
    std::vector<float> x = spread_numbers(3000, 5, 3);
    x[0] = 1;
    for (float& value : x) {
      value = static_cast<float>(value * scale);
    }
    const double expected = true_norm(x);
    EXPECT_NEAR(norm_of_parts(x, {100}), expected, 1e-14 * expected) << scale;
  }
}

TEST(ExactSquares, ManySmallOnesBesideALargeOneCount) {
  std::vector<float> x(100000, 0x1p-20F);
  x[777] = -1.5F;
  const double expected = true_norm(x);
  EXPECT_NE(expected, 1.5);
  EXPECT_EQ(norm_of_parts(x, {}), expected);
}

TEST(ExactSquares, PartsMayBeTakenAway) {
  const std::vector<float> x = spread_numbers(5000, 30, 4);
  const double largest = largest_magnitude(5000, x.data());
  ExactSquares rest = exact_squares(5000, x.data(), largest);
  const ExactSquares part = exact_squares(1234, x.data() + 100, largest);
  for (size_t i = 0; i < rest.size(); ++i) {
    rest[i] -= part[i];
  }
  std::vector<float> without = x;
  std::fill_n(without.begin() + 100, 1234, 0.0F);
  without.push_back(static_cast<float>(largest));  // the same scale
  const ExactSquares one = exact_squares(1, &without.back(), largest);
  ExactSquares expected = exact_squares(5001, without.data(), largest);
  for (size_t i = 0; i < rest.size(); ++i) {
    expected[i] -= one[i];
  }
  EXPECT_EQ(exact_norm(rest, largest), exact_norm(expected, largest));
}

TEST(ExactSquares, ZerosInfinitiesAndNan) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(norm_of_parts({}, {}), 0);
  EXPECT_EQ(norm_of_parts({0, -0.0F}, {}), 0);
  EXPECT_EQ(norm_of_parts({3, 4}, {1}), 5);
  at_every_cpu_level([&] {
    EXPECT_EQ(largest_magnitude(2, std::vector<float>{-kInfinity, 1}.data()), kInfinity);
    EXPECT_TRUE(
        std::isnan(largest_magnitude(2, std::vector<float>{kInfinity, -std::nanf("")}.data())));
  });
  EXPECT_EQ(norm_of_parts({-kInfinity, 1}, {}), kInfinity);
  EXPECT_TRUE(std::isnan(exact_norm({}, std::nan(""))));
}

}  // namespace
}  // namespace tapestry::kernels

#include "autograd/kernels/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "autograd/kernels/machine/parallel_for.h"
#include "tests/autograd/kernels/numbers.h"
#include "tests/cpu_levels.h"

namespace tapestry::kernels {
namespace {

constexpr uint32_t kAllGroups = kExtremesAndSums | kElementCounts | kMantissaBits;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Digits from the highest to the lowest 1, found by doubling until nothing is left behind the
/// point.
int64_t digits_of(double x) {
  if (x == 0) {
    return 0;
  }
  int exponent = 0;
  double rest = std::frexp(std::fabs(x), &exponent);  // 0.5 <= rest < 1
  int64_t digits = 0;
  while (rest != 0) {
    rest = rest * 2 - std::floor(rest * 2);
    ++digits;
  }
  return digits;
}

/// One element after the other, from the definitions.
ElementStatistics obvious(const std::vector<double>& x) {
  ElementStatistics out;
  for (const double value : x) {
    out.nan += std::isnan(value) ? 1 : 0;
    out.negative += value < 0 ? 1 : 0;
    out.positive += value > 0 ? 1 : 0;
    out.zero += value == 0 ? 1 : 0;
    out.negative_infinity += value == -kInfinity ? 1 : 0;
    out.positive_infinity += value == kInfinity ? 1 : 0;
    if (std::isfinite(value)) {
      out.max = std::max(out.max, value);
      out.min = std::min(out.min, value);
      out.sum += value;
      out.sum_squares += value * value;
      out.bits = std::max(out.bits, digits_of(value));
    }
  }
  return out;
}

template <class T>
void expect_same(const std::vector<T>& x, DType dtype) {
  std::vector<double> values;
  for (const T& value : x) {
    if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) {
      values.push_back(static_cast<double>(static_cast<float>(value)));
    } else {
      values.push_back(static_cast<double>(value));
    }
  }
  const ElementStatistics expected = obvious(values);
  const auto n = static_cast<int64_t>(x.size());
  const ElementStatistics found = element_statistics(dtype, n, x.data(), kAllGroups);
  EXPECT_EQ(found.max, expected.max);
  EXPECT_EQ(found.min, expected.min);
  double magnitude = 0;
  for (const double value : values) {
    magnitude += std::isfinite(value) ? std::fabs(value) : 0;
  }
  EXPECT_NEAR(found.sum, expected.sum, 1e-12 * magnitude);
  if (found.sum_squares != expected.sum_squares) {  // both may be infinite
    EXPECT_NEAR(found.sum_squares, expected.sum_squares, 1e-12 * expected.sum_squares);
  }
  EXPECT_EQ(found.negative, expected.negative);
  EXPECT_EQ(found.positive, expected.positive);
  EXPECT_EQ(found.zero, expected.zero);
  EXPECT_EQ(found.nan, expected.nan);
  EXPECT_EQ(found.negative_infinity, expected.negative_infinity);
  EXPECT_EQ(found.positive_infinity, expected.positive_infinity);
  EXPECT_EQ(found.bits, expected.bits);
}

/// Of every kind that a floating type has, more or less of each.
template <class T>
std::vector<T> mixed(int64_t n, bool finite) {
  std::vector<T> x;
  for (int64_t i = 0; i < n; ++i) {
    double value = static_cast<double>((i * 7919 + 5) % 1009 - 500) * 0.0123;
    if (i % 17 == 3) {
      value = i % 2 == 0 ? 0.0 : -0.0;
    }
    if (!finite && i % 97 == 11) {
      value = i % 3 == 0 ? std::nan("") : i % 3 == 1 ? kInfinity : -kInfinity;
    }
    if constexpr (std::is_same_v<T, double>) {
      x.push_back(value);
    } else {
      x.push_back(static_cast<T>(static_cast<float>(value)));
    }
  }
  return x;
}

TEST(Statistics, AgreeWithTheDefinitionsForEverySizeAndKind) {
  for (const int64_t n : {1, 2, 15, 16, 17, 511, 513, 32767, 32768, 32769, 100001}) {
    for (const bool finite : {true, false}) {
      SCOPED_TRACE(std::to_string(n) + (finite ? " finite" : " mixed"));
      expect_same(mixed<float>(n, finite), kFloat32);
      expect_same(mixed<double>(n, finite), kFloat64);
      expect_same(mixed<BFloat16>(n, finite), kBFloat16);
      expect_same(mixed<Float16>(n, finite), kFloat16);
    }
  }
}

TEST(Statistics, AgreeForIntegersAndBool) {
  std::vector<int32_t> words;
  std::vector<int64_t> longs;
  std::vector<int8_t> bytes;
  std::vector<uint8_t> flags;
  for (int64_t i = 0; i < 1000; ++i) {
    words.push_back(static_cast<int32_t>(i * 12345677 - 6000000));
    longs.push_back((i - 300) * 987654);
    bytes.push_back(static_cast<int8_t>(i % 256 - 128));
    flags.push_back(static_cast<uint8_t>(i % 3 == 0));
  }
  expect_same(words, kInt32);
  expect_same(longs, kInt64);
  expect_same(bytes, kInt8);
  expect_same(flags, kUInt8);
  expect_same(flags, kBool);
}

TEST(Statistics, OfNothing) {
  const ElementStatistics found = element_statistics(kFloat32, 0, nullptr, kAllGroups);
  EXPECT_EQ(found.max, -kInfinity);
  EXPECT_EQ(found.min, kInfinity);
  EXPECT_EQ(found.sum_squares, 0);
  EXPECT_EQ(found.bits, 0);
}

TEST(Statistics, WithoutAFiniteElement) {
  const std::vector<float> x = {std::nanf(""), INFINITY, -INFINITY};
  expect_same(x, kFloat32);
  EXPECT_EQ(element_statistics(kFloat32, 3, x.data(), kAllGroups).max, -kInfinity);
}

TEST(Statistics, NothingIsLostAtTheEndsOfTheRange) {
  const float largest = std::numeric_limits<float>::max();
  const float smallest = std::numeric_limits<float>::denorm_min();
  expect_same(std::vector<float>{largest, -largest, smallest, -smallest, 3 * smallest}, kFloat32);
  expect_same(std::vector<double>{1e200, -1e200, 5e-324, 7e-310}, kFloat64);
  const std::vector<double> finite = {1e200, 1e200};
  const auto found = element_statistics(kFloat64, 2, finite.data(), kExtremesAndSums);
  EXPECT_EQ(found.max, 1e200);
  EXPECT_EQ(found.sum_squares, kInfinity);  // as its contract says
}

TEST(Statistics, BitsBetrayANarrowerTypeInsideAWiderOne) {
  const std::vector<float> x = mixed<float>(5000, true);
  std::vector<float> rounded;
  for (const float value : x) {
    rounded.push_back(static_cast<float>(BFloat16(value)));
  }
  EXPECT_EQ(element_statistics(kFloat32, 5000, x.data(), kMantissaBits).bits, 24);
  EXPECT_EQ(element_statistics(kFloat32, 5000, rounded.data(), kMantissaBits).bits, 8);
}

TEST(Statistics, OnlyWhatWasChosen) {
  const std::vector<float> x = {1, -2, 3};
  const auto found = element_statistics(kFloat32, 3, x.data(), kElementCounts);
  EXPECT_EQ(found.positive, 2);
  EXPECT_EQ(found.sum, 0);
  EXPECT_EQ(found.bits, 0);
}

TEST(Statistics, DoNotDependOnTheNumberOfThreads) {
  const std::vector<float> x = mixed<float>(1000003, true);
  const int before = num_threads();
  set_num_threads(1);
  const auto one = element_statistics(kFloat32, 1000003, x.data(), kAllGroups);
  set_num_threads(3);
  const auto three = element_statistics(kFloat32, 1000003, x.data(), kAllGroups);
  set_num_threads(before);
  EXPECT_EQ(one.sum, three.sum);
  EXPECT_EQ(one.sum_squares, three.sum_squares);
}

}  // namespace
}  // namespace tapestry::kernels

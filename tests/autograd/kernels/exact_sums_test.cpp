#include "autograd/kernels/exact/exact_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "autograd/kernels/machine/team.h"
#include "tests/cpu_levels.h"

namespace tapestry::kernels {
namespace {

TEST(ExactSums, AnyOrderOfTermsGivesOneSum) {
  constexpr int64_t kTerms = 40;
  constexpr int64_t kSize = 333;
  std::mt19937 random(1);
  std::uniform_real_distribution<float> value(-1, 1);
  std::vector<float> terms(kTerms * kSize);
  for (float& term : terms) {
    term = std::ldexp(value(random), -static_cast<int>(random() % 40));
  }
  std::vector<int64_t> order(kTerms);
  for (int64_t i = 0; i < kTerms; ++i) {
    order[static_cast<size_t>(i)] = i;
  }
  std::vector<double> expected(kSize);
  add_columns_to_exact(kFloat32, kTerms, kSize, terms.data(), kSize, expected.data());
  EXPECT_NE(expected, std::vector<double>(kSize));
  at_every_cpu_level([&] {
    std::shuffle(order.begin(), order.end(), random);
    std::vector<double> first(kSize);  // of two ranks, say
    std::vector<double> second(kSize);
    for (size_t i = 0; i < order.size(); ++i) {
      std::vector<double>& sums = i < 13 ? first : second;
      add_to_exact(kFloat32, kSize, terms.data() + order[i] * kSize, sums.data());
    }
    for (size_t i = 0; i < first.size(); ++i) {
      first[i] += second[i];
    }
    EXPECT_EQ(first, expected);
  });
}

TEST(ExactSums, RoundInTheirOwnMemoryAsElsewhere) {
  const int threads = num_threads();
  for (const int64_t n : {0, 1, 7, 1024, 1025, 100003}) {
    std::vector<double> sums(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      sums[static_cast<size_t>(i)] = static_cast<double>((i * 7919 - 5000) % 1000003) * 0x1p23 + 1;
    }
    double largest = 0;
    std::vector<float> expected(sums.size());
    for (size_t i = 0; i < sums.size(); ++i) {
      largest = std::max(largest, std::abs(sums[i]));
      expected[i] = static_cast<float>(sums[i] * 0x1p-44);
    }
    at_every_cpu_level([&] {
      for (const int team : {1, 3}) {
        set_num_threads(team);
        std::vector<float> apart(sums.size());
        EXPECT_EQ(exact_to_float32(n, sums.data(), apart.data()), largest);
        EXPECT_EQ(apart, expected);
        std::vector<double> memory = sums;
        auto* place = reinterpret_cast<float*>(memory.data());
        EXPECT_EQ(exact_to_float32(n, memory.data(), place), largest);
        EXPECT_EQ(n == 0 ? 0 : std::memcmp(place, expected.data(), sizeof(float) * sums.size()), 0);
      }
    });
  }
  set_num_threads(threads);
  std::vector<double> sums(100, 1);
  sums[50] = std::numeric_limits<double>::infinity();
  std::vector<float> out(sums.size());
  EXPECT_TRUE(std::isnan(exact_to_float32(100, sums.data(), out.data())));
  EXPECT_EQ(out[50], std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace tapestry::kernels

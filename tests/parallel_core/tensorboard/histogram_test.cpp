#include "parallel_core/tensorboard/histogram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace tapestry::report {
namespace {

// Where each value belongs, by the definition: ends at 0 and at +-1e-12 1.1^k.
double end_of_bucket(double value) {
  constexpr double kLargest = std::numeric_limits<double>::max();
  if (value >= 0) {
    for (double limit = 1e-12; limit < 1e20; limit *= 1.1) {
      if (value < limit) {
        return limit;
      }
    }
    return kLargest;
  }
  double below = 0;
  for (double limit = 1e-12; limit < 1e20; limit *= 1.1) {
    if (value >= -limit) {
      return below;
    }
    below = -limit;
  }
  return below;
}

void expect_right_bucket(float value) {
  Histogram histogram;
  histogram.add(std::vector<float>{value});
  const Histogram::Buckets buckets = histogram.buckets();
  ASSERT_EQ(buckets.limits.size(), buckets.counts.size());
  EXPECT_EQ(buckets.counts.back(), 1) << value;
  EXPECT_EQ(buckets.limits.back(), end_of_bucket(value)) << value;
  if (buckets.limits.size() > 1) {
    EXPECT_EQ(buckets.counts.size(), 2U);
    EXPECT_EQ(buckets.counts.front(), 0);
    EXPECT_GE(value, buckets.limits.front());
  }
}

TEST(Histogram, EachValueLiesInItsBucket) {
  for (const float value :
       {0.0F, -0.0F, 1.0F, -1.0F, 1e-12F, -1e-12F, 1e-13F, -1e-13F, 1e20F, 1e21F, -1e21F, 1e-40F,
        -1e-40F, std::numeric_limits<float>::max(), std::numeric_limits<float>::lowest()}) {
    expect_right_bucket(value);
  }
  std::mt19937 random(1);
  std::uniform_real_distribution<double> exponent(-15, 22);
  for (int i = 0; i < 2000; ++i) {
    const auto value = static_cast<float>(std::pow(10, exponent(random)));
    expect_right_bucket(i % 2 == 0 ? value : -value);
  }
  // The ends themselves, and their neighbours.
  for (double limit = 1e-12; limit < 1e20; limit *= 1.1) {
    const auto value = static_cast<float>(limit);
    for (const float near : {std::nextafter(value, 0.0F), value, std::nextafter(value, 1e30F)}) {
      expect_right_bucket(near);
      expect_right_bucket(-near);
    }
  }
}

TEST(Histogram, MomentsAndExtremes) {
  Histogram histogram;
  histogram.add(std::vector<float>{3, -1});
  histogram.add(std::vector<float>{0.5F, std::numeric_limits<float>::infinity(), std::nanf("")});
  EXPECT_EQ(histogram.min(), -1);
  EXPECT_EQ(histogram.max(), 3);
  EXPECT_EQ(histogram.count(), 3);
  EXPECT_EQ(histogram.sum(), 2.5);
  EXPECT_EQ(histogram.sum_squares(), 10.25);
  const Histogram::Buckets buckets = histogram.buckets();
  EXPECT_EQ(std::accumulate(buckets.counts.begin(), buckets.counts.end(), 0.0), 3);
}

TEST(Histogram, OfNothing) {
  const Histogram histogram;
  EXPECT_EQ(histogram.count(), 0);
  EXPECT_EQ(histogram.buckets().limits.size(), 1U);
}

TEST(Histogram, PartsAddUp) {
  const std::vector<float> values = {0.25F, 3, -7, 0, 0.25F, 11};
  Histogram whole;
  whole.add(values);
  Histogram first;
  Histogram second;
  first.add(std::span(values).first(2));
  second.add(std::span(values).subspan(2));
  for (size_t i = 0; i < first.sums().size(); ++i) {
    first.sums()[i] += second.sums()[i];
  }
  first.set_extremes(-7, 11);
  EXPECT_EQ(first.buckets().counts, whole.buckets().counts);
  EXPECT_EQ(first.buckets().limits, whole.buckets().limits);
  EXPECT_EQ(first.sum_squares(), whole.sum_squares());
  first.divide(2);
  EXPECT_EQ(first.count(), 3);
}

}  // namespace
}  // namespace tapestry::report

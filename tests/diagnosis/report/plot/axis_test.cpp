#include "diagnosis/report/plot/axis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tapestry::plot {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> labels(const Range& range, int most, bool whole = false) {
  std::vector<std::string> found;
  for (const Tick& tick : make_ticks(range, most, whole)) {
    found.push_back(tick.label);
  }
  return found;
}

TEST(Axis, TicksAreRound) {
  EXPECT_THAT(labels({0, 10}, 6), ElementsAre("0", "2", "4", "6", "8", "10"));
  EXPECT_THAT(labels({0, 10}, 5), ElementsAre("0", "5", "10"));
  EXPECT_THAT(labels({1.87, 4.2}, 6), ElementsAre("2.0", "2.5", "3.0", "3.5", "4.0"));
  EXPECT_THAT(labels({-0.04, 0.03}, 8),
              ElementsAre("-0.04", "-0.03", "-0.02", "-0.01", "0", "0.01", "0.02", "0.03"));
  EXPECT_THAT(labels({0.1, 0.3}, 3), ElementsAre("0.1", "0.2", "0.3"));
}

TEST(Axis, LargeNumbersHaveUnits) {
  EXPECT_THAT(labels({0, 9000}, 4), ElementsAre("0", "5000"));
  EXPECT_THAT(labels({0, 12000}, 4), ElementsAre("0", "5k", "10k"));
  EXPECT_THAT(labels({0, 1.6e6}, 4), ElementsAre("0", "0.5M", "1.0M", "1.5M"));
  EXPECT_THAT(labels({0, 4e9}, 3), ElementsAre("0", "2B", "4B"));
  EXPECT_THAT(labels({0, 2.5e12}, 3), ElementsAre("0", "1T", "2T"));
  EXPECT_THAT(labels({0, 2e30}, 3), ElementsAre("0", "1e+30", "2e+30"));
  EXPECT_THAT(labels({0, 2e-9}, 3), ElementsAre("0", "1e-09", "2e-09"));
}

TEST(Axis, StepsAreWhole) {
  EXPECT_THAT(labels({0, 3}, 11, /*whole=*/true), ElementsAre("0", "1", "2", "3"));
  EXPECT_THAT(labels({0.1, 0.9}, 11, /*whole=*/true), IsEmpty());
}

TEST(Axis, TicksLieInTheRangeAndAreNotTooMany) {
  for (const double low : {-1e20, -3.7, 0.0, 1e-7, 0.33, 98.6, 1e9}) {
    for (const double length : {1e-3, 0.7, 13.0, 1e4, 3e25}) {
      for (int most = 2; most < 12; ++most) {
        const Range range = range_of({low, low + length}, 0);
        const std::vector<Tick> ticks = make_ticks(range, most);
        EXPECT_LE(ticks.size(), static_cast<size_t>(most));
        // Of the steps 1, 2, 5, 10 none is more than 2.5 times as long as the one before.
        EXPECT_GE(ticks.size(), static_cast<size_t>(most / 2.5 - 1));
        for (const Tick& tick : ticks) {
          const double slack = 1e-6 * range.length();
          EXPECT_GE(tick.value, range.low - slack);
          EXPECT_LE(tick.value, range.high + slack);
        }
      }
    }
  }
}

TEST(Axis, RangesAreNeverEmpty) {
  const double nan = std::nan("");
  const double inf = std::numeric_limits<double>::infinity();
  const Range usual = range_of({4, nan, 2, inf, 3, -inf}, 0.1);
  EXPECT_DOUBLE_EQ(usual.low, 1.8);
  EXPECT_DOUBLE_EQ(usual.high, 4.2);
  EXPECT_DOUBLE_EQ(usual.part(3), 0.5);
  for (const std::vector<double>& values :
       {std::vector<double>{}, {nan}, {0}, {5, 5}, {-1e30}, {1, 1 + 1e-15}}) {
    const Range range = range_of(values, 0.1);
    EXPECT_GT(range.length(), 0);
    for (const double value : values) {
      EXPECT_FALSE(value < range.low || value > range.high);
    }
  }
}

}  // namespace
}  // namespace tapestry::plot

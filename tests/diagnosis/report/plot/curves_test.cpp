#include "diagnosis/report/plot/curves.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "autograd/tensor/error.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::plot {
namespace {

const double kNan = std::nan("");

TEST(Curves, GapsPartALine) {
  const Points points = {{1, 5}, {2, kNan}, {3, 3}, {4, std::numeric_limits<double>::infinity()}};
  const std::vector<Points> parts = without_gaps(points);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].front().x, 1);
  EXPECT_EQ(parts[1].front().x, 3);
}

TEST(Curves, SmoothingIsAMeanWithFallingWeights) {
  // (1 y_3 + w y_2 + w^2 y_1) / (1 + w + w^2)
  const Points smooth = smoothed({{1, 7}, {2, 3}, {3, 2}}, 0.5);
  EXPECT_DOUBLE_EQ(smooth[0].y, 7);
  EXPECT_DOUBLE_EQ(smooth[1].y, (3 + 0.5 * 7) / 1.5);
  EXPECT_DOUBLE_EQ(smooth[2].y, (2 + 0.5 * 3 + 0.25 * 7) / 1.75);
  const Points gap = smoothed({{1, 7}, {2, kNan}, {3, 3}}, 0.5);
  EXPECT_TRUE(std::isnan(gap[1].y));
  EXPECT_DOUBLE_EQ(gap[2].y, (3 + 0.5 * 7) / 1.5);
}

TEST(Curves, WrongRequestsAreRefused) {
  EXPECT_EQ(parse_x_axis("tokens"), XAxis::kTokens);
  EXPECT_ERROR(parse_x_axis("hours"), ValueError, "--x ... 'hours'; ... steps, tokens or time");
}

TEST(Curves, ThinningKeepsWhatEachColumnShows) {
  constexpr int kColumns = 10;
  std::mt19937 random(3);
  Points points;
  for (int i = 0; i <= 1000; ++i) {
    points.push_back({static_cast<double>(i), static_cast<double>(random() % 1000)});
  }
  const Range x{0, 1000};
  const Points kept = thinned(points, x, kColumns);
  EXPECT_LE(kept.size(), 4U * kColumns);
  for (int column = 0; column < kColumns; ++column) {
    const auto in_column = [&](const Points& all) {
      Points found;
      for (const Point& point : all) {
        if (std::min(static_cast<int>(point.x / 100), kColumns - 1) == column) {
          found.push_back(point);
        }
      }
      return found;
    };
    const Points before = in_column(points);
    const Points after = in_column(kept);
    const auto lower = [](const Point& a, const Point& b) { return a.y < b.y; };
    ASSERT_FALSE(after.empty());
    EXPECT_EQ(before.front().x, after.front().x);
    EXPECT_EQ(before.back().x, after.back().x);
    EXPECT_EQ(std::min_element(before.begin(), before.end(), lower)->y,
              std::min_element(after.begin(), after.end(), lower)->y);
    EXPECT_EQ(std::max_element(before.begin(), before.end(), lower)->y,
              std::max_element(after.begin(), after.end(), lower)->y);
  }
  EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end(),
                             [](const Point& a, const Point& b) { return a.x < b.x; }));
  EXPECT_EQ(thinned(points, x, 251).size(), points.size());
}

}  // namespace
}  // namespace tapestry::plot

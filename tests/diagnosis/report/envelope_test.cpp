#include "diagnosis/report/envelope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tapestry::report {
namespace {

TEST(Envelope, KeepsFewValuesAsTheyAre) {
  Envelope envelope;
  for (int i = 1; i <= 100; ++i) {
    envelope.add(i, i % 7);
  }
  const plot::Points points = envelope.points();
  ASSERT_EQ(points.size(), 100U);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(points[static_cast<size_t>(i)].x, i + 1);
    EXPECT_EQ(points[static_cast<size_t>(i)].y, (i + 1) % 7);
  }
}

TEST(Envelope, OfManyValuesKeepsExtremesAndEnds) {
  Envelope envelope;
  constexpr int kValues = 100'000;
  for (int i = 1; i <= kValues; ++i) {
    envelope.add(i, i == 54'321 ? 1000 : i == 12'345 ? -5 : std::sin(0.1 * i));
  }
  const plot::Points points = envelope.points();
  EXPECT_LE(points.size(), 2 * Envelope::kCells + 2);
  EXPECT_GE(points.size(), Envelope::kCells / 2);
  EXPECT_TRUE(std::is_sorted(points.begin(), points.end(),
                             [](const auto& a, const auto& b) { return a.x < b.x; }));
  EXPECT_EQ(points.front().x, 1);
  EXPECT_EQ(points.back().x, kValues);
  EXPECT_EQ(envelope.first().x, 1);
  EXPECT_EQ(envelope.last().x, kValues);
  EXPECT_EQ(envelope.highest().x, 54'321);
  EXPECT_EQ(envelope.highest().y, 1000);
  EXPECT_EQ(std::count_if(points.begin(), points.end(), [](const auto& p) { return p.y == -5; }),
            1);
}

TEST(Envelope, ForgetsFromAStepOn) {
  Envelope envelope;
  for (int i = 1; i <= 50; ++i) {
    envelope.add(i, i);
  }
  envelope.cut(31);
  EXPECT_EQ(envelope.points().size(), 30U);
  EXPECT_EQ(envelope.last().x, 30);
  EXPECT_EQ(envelope.highest().y, 30);
  envelope.add(31, 7);
  EXPECT_EQ(envelope.last().y, 7);
  envelope.cut(1);
  EXPECT_TRUE(envelope.empty());
  envelope.add(1, 3);
  EXPECT_EQ(envelope.first().y, 3);

  Envelope merged;
  for (int i = 1; i <= 10'000; ++i) {
    merged.add(i, i);
  }
  merged.cut(5000);
  EXPECT_LT(merged.last().x, 5000);
  for (const plot::Point& point : merged.points()) {
    EXPECT_LT(point.x, 5000);
  }
}

TEST(Envelope, CountsWhatIsNotFinite) {
  Envelope envelope;
  envelope.add(1, std::nan(""));
  EXPECT_TRUE(envelope.empty());
  envelope.add(2, 1);
  envelope.add(3, std::numeric_limits<double>::infinity());
  EXPECT_EQ(envelope.not_finite(), 2);
  EXPECT_EQ(envelope.points().size(), 1U);
}

}  // namespace
}  // namespace tapestry::report

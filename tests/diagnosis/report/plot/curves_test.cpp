#include "diagnosis/report/plot/curves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "autograd/tensor/error.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::plot {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

const double kNan = std::nan("");

std::vector<std::pair<double, double>> pairs(const Points& points) {
  std::vector<std::pair<double, double>> all;
  for (const Point& point : points) {
    all.emplace_back(point.x, point.y);
  }
  return all;
}

RunMetrics run_of(const std::string& name, double seconds) {
  return {.name = name,
          .steps = {{.step = 1, .loss = 5, .tokens = 10, .seconds = seconds},
                    {.step = 2, .loss = 4, .tokens = 10, .seconds = seconds, .eval_loss = 4.5},
                    {.step = 3, .loss = 3, .tokens = 20, .seconds = 2 * seconds}}};
}

TEST(Curves, OverStepsTokensOrTime) {
  const Chart steps = make_chart({run_of("r", 1)}, XAxis::kSteps, 0);
  ASSERT_EQ(steps.curves.size(), 2U);
  EXPECT_EQ(steps.curves[0].label, "r, training");
  EXPECT_THAT(pairs(steps.curves[0].points), ElementsAre(Pair(1, 5), Pair(2, 4), Pair(3, 3)));
  EXPECT_EQ(steps.curves[1].label, "r, validation");
  EXPECT_TRUE(steps.curves[1].validation);
  EXPECT_THAT(pairs(steps.curves[1].points), ElementsAre(Pair(2, 4.5)));
  EXPECT_EQ(steps.x_title, "steps");
  EXPECT_THAT(steps.notes, IsEmpty());

  const Chart tokens = make_chart({run_of("r", 1)}, XAxis::kTokens, 0);
  EXPECT_THAT(pairs(tokens.curves[0].points), ElementsAre(Pair(10, 5), Pair(20, 4), Pair(40, 3)));
  EXPECT_THAT(pairs(tokens.curves[1].points), ElementsAre(Pair(20, 4.5)));
  EXPECT_EQ(tokens.x_title, "tokens");

  const Chart time = make_chart({run_of("r", 1)}, XAxis::kTime, 0);
  EXPECT_THAT(pairs(time.curves[0].points), ElementsAre(Pair(1, 5), Pair(2, 4), Pair(4, 3)));
  EXPECT_EQ(time.x_title, "time of the steps (s)");
}

// The longest run decides; all runs are in its unit.
TEST(Curves, TimeHasTheUnitOfTheLongestRun) {
  const auto title = [](double seconds) {
    return make_chart({run_of("a", 1), run_of("b", seconds)}, XAxis::kTime, 0).x_title;
  };
  EXPECT_THAT(title(29), HasSubstr("(s)"));
  EXPECT_THAT(title(60), HasSubstr("(min)"));
  EXPECT_THAT(title(3600), HasSubstr("(h)"));
  EXPECT_THAT(title(86400), HasSubstr("(days)"));
  const Chart chart = make_chart({run_of("a", 3), run_of("b", 60)}, XAxis::kTime, 0.5);
  EXPECT_DOUBLE_EQ(chart.curves[0].points[2].x, 0.2);
  EXPECT_DOUBLE_EQ(chart.curves[0].raw[2].x, 0.2);
  EXPECT_DOUBLE_EQ(chart.curves[2].points[2].x, 4);
  EXPECT_DOUBLE_EQ(chart.x.high, 4);
}

TEST(Curves, LossesThatAreNotFiniteAreCountedGaps) {
  RunMetrics run = run_of("r", 1);
  run.notes = {"something else"};
  run.steps[1].loss = kNan;
  run.steps[1].eval_loss = std::numeric_limits<double>::infinity();
  const Chart chart = make_chart({run}, XAxis::kSteps, 0);
  EXPECT_THAT(chart.notes,
              ElementsAre("r: something else", "r: 1 of 3 training losses is not finite: a gap",
                          "r: 1 of 1 validation losses is not finite: a gap"));
  const std::vector<Points> parts = without_gaps(chart.curves[0].points);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_THAT(pairs(parts[0]), ElementsAre(Pair(1, 5)));
  EXPECT_THAT(pairs(parts[1]), ElementsAre(Pair(3, 3)));
  EXPECT_THAT(without_gaps(chart.curves[1].points), IsEmpty());
  for (StepLosses& step : run.steps) {
    step.loss = kNan;
  }
  EXPECT_ERROR(make_chart({run}, XAxis::kSteps, 0), ValueError, "r has no finite loss");
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

  const Chart chart = make_chart({run_of("r", 1)}, XAxis::kSteps, 0.5);
  EXPECT_EQ(chart.curves[0].label, "r, training (smoothed)");
  EXPECT_THAT(pairs(chart.curves[0].raw), ElementsAre(Pair(1, 5), Pair(2, 4), Pair(3, 3)));
  EXPECT_DOUBLE_EQ(chart.curves[0].points[1].y, (4 + 0.5 * 5) / 1.5);
  EXPECT_THAT(pairs(chart.curves[1].points), ElementsAre(Pair(2, 4.5)));  // validation as it is
  EXPECT_THAT(chart.curves[1].raw, IsEmpty());
  EXPECT_EQ(losses_of(chart, false).size(), 4U);
  EXPECT_EQ(losses_of(chart, true).size(), 7U);
}

TEST(Curves, WrongRequestsAreRefused) {
  for (const double smooth : {-0.1, 1.0, kNan}) {
    EXPECT_ERROR(make_chart({run_of("r", 1)}, XAxis::kSteps, smooth), ValueError,
                 "expected a number from ... 0 ... 1");
  }
  EXPECT_ERROR(make_chart(std::vector<RunMetrics>(27, run_of("r", 1)), XAxis::kSteps, 0),
               ValueError, "27 ... runs; a picture shows ... 1 ... 26");
  EXPECT_EQ(parse_x_axis("tokens"), XAxis::kTokens);
  EXPECT_ERROR(parse_x_axis("hours"), ValueError, "--x ... 'hours'; ... steps, tokens or time");
}

TEST(Curves, ARunOfOneStepHasAnAxis) {
  RunMetrics run{.name = "r", .steps = {{.step = 1, .loss = 5}}};
  for (const XAxis axis : {XAxis::kSteps, XAxis::kTokens, XAxis::kTime}) {
    EXPECT_GT(make_chart({run}, axis, 0).x.length(), 0);
  }
  run.steps[0].step = 900;
  EXPECT_GT(make_chart({run}, XAxis::kSteps, 0).x.length(), 0);
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

#include "diagnosis/report/line_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/diagnosis/report/html_reader.h"

namespace tapestry::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

LineChart chart_of(const plot::Points& points) {
  return {.title = "Loss",
          .unit = "per token",
          .lines = {{.run = 0, .name = "training", .points = points}},
          .x = {0, points.back().x}};
}

TEST(LineChart, PointsAreWhereTheAxesSay) {
  const plot::Points points = {{1, 10}, {2, 4.5}, {3, 3.25}, {1000, 3}};
  const auto lines = read_chart(chart_html(chart_of(points)), "Loss");
  ASSERT_EQ(lines.size(), 1U);
  ASSERT_EQ(lines[0].points.size(), points.size());
  for (size_t i = 0; i < points.size(); ++i) {
    EXPECT_EQ(lines[0].points[i].x, points[i].x);
    EXPECT_NEAR(lines[0].points[i].y, points[i].y, 1e-4);  // a hundred-thousandth of the range
  }
}

TEST(LineChart, ALabelStandsAtItsGridLine) {
  const std::string html = chart_html(chart_of({{1, 0}, {10, 4}}));
  const std::string grid = part_between(html, "<path class=\"grid\" d=\"", "\"");
  // y from -0.2 to 4.2, of which 2 is the middle; x from 0 to 10.
  EXPECT_THAT(html, HasSubstr("<span style=\"top:50.00%\">2</span>"));
  EXPECT_THAT(grid, HasSubstr("M0,50000H10"));
  EXPECT_THAT(html, HasSubstr("<span style=\"left:60.00%\">6</span>"));
  EXPECT_THAT(grid, HasSubstr("M6,0V100000"));
}

TEST(LineChart, LargeDifferencesHaveALogarithmicScale) {
  const auto wide = chart_html(chart_of({{1, 100}, {2, 0.01}, {3, 1}}));
  EXPECT_THAT(wide, HasSubstr("data-log=\"1\""));
  EXPECT_THAT(wide, HasSubstr("per token, log scale"));
  EXPECT_NEAR(read_chart(wide, "Loss")[0].points[1].y, 0.01, 1e-5);
  EXPECT_NEAR(read_chart(wide, "Loss")[0].points[0].y, 100, 0.1);
  for (const char* label : {">0.01<", ">1<", ">100<"}) {
    EXPECT_THAT(wide, HasSubstr(label));
  }
  EXPECT_THAT(chart_html(chart_of({{1, 100}, {2, 0}})), HasSubstr("data-log=\"0\""));
  LineChart zero = chart_of({{1, 100}, {2, 0.01}});
  zero.from_zero = true;
  EXPECT_THAT(chart_html(zero), HasSubstr("data-y0=\"0\""));
}

TEST(LineChart, GapsAndLonePoints) {
  const double gap = std::nan("");
  const std::string html = chart_html(chart_of({{1, 1}, {2, gap}, {3, 2}, {4, 2}, {5, gap}}));
  const std::string path = part_between(html, "<path class=\"curve\" d=\"", "\"");
  EXPECT_THAT(path, ::testing::MatchesRegex("M1,[0-9]+h0M3,[0-9]+ 4,[0-9]+"));
  EXPECT_THAT(html, Not(HasSubstr("nan")));
  EXPECT_EQ(chart_html(chart_of({{1, gap}})), "");
}

TEST(LineChart, ALongRunIsThinnedWithItsExtremes) {
  plot::Points points;
  constexpr int kSteps = 1'000'000;
  for (int i = 1; i <= kSteps; ++i) {
    points.push_back({static_cast<double>(i), 3 + 0.1 * std::sin(i)});
  }
  points[123'456].y = 9;
  const std::string html = chart_html(chart_of(points));
  EXPECT_LT(html.size(), 40'000U);
  const auto line = read_chart(html, "Loss")[0];
  const auto highest = std::max_element(line.points.begin(), line.points.end(),
                                        [](const auto& a, const auto& b) { return a.y < b.y; });
  EXPECT_EQ(highest->x, 123'457);
  EXPECT_NEAR(highest->y, 9, 1e-3);
}

TEST(LineChart, FewPointsAreDots) {
  LineChart chart = chart_of({{10, 3}, {20, 2}});
  chart.lines[0].kind = LineKind::kDots;
  EXPECT_THAT(chart_html(chart), HasSubstr("<path class=\"points\" d=\"M10,"));
}

TEST(LineChart, TextsAreEscaped) {
  LineChart chart = chart_of({{1, 3}, {2, 2}});
  chart.title = "<script>alert(1)</script>";
  chart.lines[0].owner = "a\"b'<&>";
  const std::string html = chart_html(chart);
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(1)&lt;/script&gt;"));
  EXPECT_THAT(html, HasSubstr("data-owner=\"a&quot;b&#39;&lt;&amp;&gt;\""));
  EXPECT_THAT(html, Not(HasSubstr("<script>")));
}

TEST(LineChart, MarksOfStepsWithoutAnUpdate) {
  LineChart chart = chart_of({{1, 3}, {100, 2}});
  EXPECT_THAT(chart_html(chart), Not(HasSubstr("class=\"marks\"")));
  chart.marks = {40, 41};
  EXPECT_THAT(chart_html(chart), HasSubstr("<path class=\"marks\" d=\"M40,97000V100000M41,"));
  EXPECT_THAT(chart_html(chart), HasSubstr("no update"));
}

}  // namespace
}  // namespace tapestry::report

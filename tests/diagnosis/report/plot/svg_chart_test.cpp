#include "diagnosis/report/plot/svg_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "autograd/tensor/error.h"
#include "diagnosis/report/plot/plot.h"
#include "tests/diagnosis/report/plot/svg_reader.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::plot {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RunMetrics noisy(const std::string& name, int steps, double level) {
  RunMetrics run{.name = name};
  for (int i = 1; i <= steps; ++i) {
    StepLosses step{.step = i, .loss = level + 0.3 * std::sin(1.7 * i), .tokens = 1e5};
    if (i % 10 == 0) {
      step.eval_loss = level;
    }
    run.steps.push_back(step);
  }
  return run;
}

TEST(SvgChart, PointsAreWhereTheTicksSay) {
  const Chart chart = make_chart({noisy("r", 50, 3)}, XAxis::kTokens, 0);
  const SvgPlot plot = read_svg(svg_chart(chart));
  ASSERT_EQ(plot.curves.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(plot.curves[i].title, chart.curves[i].label);
    ASSERT_EQ(plot.curves[i].lines.size(), 1U);
    const Points& points = plot.curves[i].lines[0];
    ASSERT_EQ(points.size(), chart.curves[i].points.size());
    for (size_t k = 0; k < points.size(); ++k) {
      EXPECT_NEAR(points[k].x, chart.curves[i].points[k].x, plot.x_rounding);
      EXPECT_NEAR(points[k].y, chart.curves[i].points[k].y, plot.y_rounding);
    }
  }
}

TEST(SvgChart, GapsPartALine) {
  RunMetrics run = noisy("r", 20, 3);
  run.steps[4].loss = std::nan("");
  run.steps[6].loss = std::numeric_limits<double>::infinity();
  const std::string svg = svg_chart(make_chart({run}, XAxis::kSteps, 0));
  const SvgPlot plot = read_svg(svg);
  ASSERT_EQ(plot.curves[0].lines.size(), 2U);
  EXPECT_EQ(plot.curves[0].lines[0].size(), 4U);
  EXPECT_EQ(plot.curves[0].lines[1].size(), 13U);
  EXPECT_THAT(svg, HasSubstr("<circle"));  // the point between them
  EXPECT_THAT(svg, Says(">r: 2 ... 20 ... losses are not finite ... gaps</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(SvgChart, TheRawCurveLiesFaintBehindTheSmoothed) {
  const Chart chart = make_chart({noisy("r", 50, 3)}, XAxis::kSteps, 0.9);
  const std::string svg = svg_chart(chart);
  const SvgPlot plot = read_svg(svg);
  ASSERT_EQ(plot.raw.size(), 1U);
  ASSERT_EQ(plot.curves[0].lines.size(), 1U);
  EXPECT_NEAR(plot.raw[0][20].y, chart.curves[0].raw[20].y, plot.y_rounding);
  EXPECT_NEAR(plot.curves[0].lines[0][20].y, chart.curves[0].points[20].y, plot.y_rounding);
  EXPECT_THAT(svg, HasSubstr("<g class=\"raw\" fill=\"none\" stroke-opacity=\"0.3\">"));
  EXPECT_LT(svg.find("<g class=\"raw\""), svg.find("<g class=\"curve\""));
}

TEST(SvgChart, ValidationLiesOnTop) {
  const Chart chart = make_chart({noisy("a", 50, 3), noisy("b", 50, 3)}, XAxis::kSteps, 0);
  std::vector<std::string> titles;
  for (const SvgCurve& curve : read_svg(svg_chart(chart)).curves) {
    titles.push_back(curve.title);
  }
  EXPECT_THAT(titles, ::testing::ElementsAre("a, training", "b, training", "a, validation",
                                             "b, validation"));
}

TEST(SvgChart, RunsDifferInColorAndShapeAndKindsInDashes) {
  std::vector<RunMetrics> runs;
  runs.reserve(26);
  for (int i = 0; i < 26; ++i) {
    runs.push_back(noisy(std::string(1, static_cast<char>('a' + i)), 30, 2 + i));
  }
  const std::string svg = svg_chart(make_chart(runs, XAxis::kSteps, 0));
  const SvgPlot plot = read_svg(svg);
  ASSERT_EQ(plot.curves.size(), 52U);
  std::set<std::string> looks;
  for (const SvgCurve& curve : plot.curves) {
    looks.insert(concat(curve.color, " ", curve.dashes, " ", curve.shape));
    EXPECT_EQ(curve.dashes.empty(), curve.title.find("validation") == std::string::npos);
    EXPECT_NE(curve.shape, "") << curve.title;
  }
  EXPECT_EQ(looks.size(), 52U);
}

TEST(SvgChart, NeedsNothingAndEscapesNames) {
  const std::string svg =
      svg_chart(make_chart({noisy("<a> & \"b\"\x1b\xff", 30, 3)}, XAxis::kSteps, 0));
  EXPECT_THAT(svg, HasSubstr(">&lt;a&gt; &amp; &quot;b&quot;??, training</"));
  EXPECT_THAT(svg, Not(HasSubstr("<style")));
  EXPECT_THAT(svg, Not(HasSubstr("href")));
  EXPECT_THAT(svg, HasSubstr("fill=\"#ffffff\""));
  EXPECT_THAT(svg, HasSubstr(">steps</text>"));
  EXPECT_THAT(svg, HasSubstr(">loss per token</text>"));
}

TEST(SvgChart, LongRunsStaySmall) {
  const Chart chart = make_chart({noisy("r", 100000, 3)}, XAxis::kSteps, 0);
  const std::string svg = svg_chart(chart);
  const SvgPlot plot = read_svg(svg);
  EXPECT_LE(plot.curves[0].lines[0].size(), 4U * 860);
  EXPECT_LT(svg.size(), 200000U);
}

TEST(PlotRuns, WritesAFileOrReturnsText) {
  const data::TempDir dir;
  std::string lines;
  for (int i = 1; i <= 3; ++i) {
    lines += concat("{\"step\":", i, ",\"loss\":", i == 2 ? "\"nan\"" : "2.5",
                    ",\"tokens\":8,\"step_time_ms\":1}\n");
  }
  dir.write("r/metrics.jsonl", lines);
  PlotOptions options{.runs = {dir.file("r")}};
  EXPECT_THAT(plot_runs(options), HasSubstr("a r, training: last 2.5000\n"));
  options.out = dir.file("r.svg");
  EXPECT_EQ(plot_runs(options), "wrote " + options.out +
                                    ": 1 curve of 1 run\n"
                                    "note: r: 1 of 3 training losses is not finite: a gap\n");
  EXPECT_EQ(read_svg(dir.read("r.svg")).curves.size(), 1U);
  options.out = dir.file("r.png");
  EXPECT_ERROR(plot_runs(options), ValueError, "name that ends in ... .svg");
  options.out = dir.file("nowhere/r.svg");
  EXPECT_ERROR(plot_runs(options), IoError, "nowhere/r.svg");
}

}  // namespace
}  // namespace tapestry::plot

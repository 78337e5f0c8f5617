#include "diagnosis/report/chart_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "autograd/tensor/error.h"
#include "diagnosis/report/plot_runs.h"
#include "diagnosis/report/run_charts.h"
#include "tests/diagnosis/report/svg_reader.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RunRecord noisy(const std::string& name, int steps, double level) {
  RunRecord run;
  run.name = name;
  for (int i = 1; i <= steps; ++i) {
    run.steps.push_back(i);
    run.columns["loss"].push_back(level + 0.3 * std::sin(1.7 * i));
    run.columns["tokens"].push_back(1e5);
    run.columns["step_time_ms"].push_back(1000);
    run.columns["eval_loss"].push_back(i % 10 == 0 ? level : std::nan(""));
  }
  return run;
}

std::string svg_of(const std::vector<RunRecord>& runs,
                   double smooth = 0,
                   plot::XAxis x = plot::XAxis::kSteps) {
  const ChartOptions options{.x = x, .smooth = smooth};
  return charts_svg({loss_chart(runs, options)}, x_title_of(runs, options));
}

TEST(ChartFile, PointsAreWhereTheTicksSay) {
  const std::vector<RunRecord> runs = {noisy("r", 50, 3)};
  const LineChart chart = loss_chart(runs, {.x = plot::XAxis::kTokens, .smooth = 0});
  const SvgPlot found = read_svg(svg_of(runs, 0, plot::XAxis::kTokens));
  ASSERT_EQ(found.curves.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(found.curves[i].title, i == 0 ? "training" : "evaluation");
    ASSERT_EQ(found.curves[i].lines.size(), 1U);
    const Points& points = found.curves[i].lines[0];
    ASSERT_EQ(points.size(), chart.lines[i].points.size());
    for (size_t k = 0; k < points.size(); ++k) {
      EXPECT_NEAR(points[k].x, chart.lines[i].points[k].x, found.x_rounding);
      EXPECT_NEAR(points[k].y, chart.lines[i].points[k].y, found.y_rounding);
    }
  }
}

TEST(ChartFile, GapsPartALine) {
  RunRecord run = noisy("r", 20, 3);
  run.columns["loss"][4] = std::nan("");
  run.columns["loss"][6] = std::nan("");
  const std::string svg = svg_of({run});
  const std::vector<Points> lines = read_svg(svg).curves[0].lines;
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0].size(), 4U);
  EXPECT_EQ(lines[1].size(), 1U);
  EXPECT_EQ(lines[2].size(), 13U);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(ChartFile, TheRawCurveLiesFaintBehindTheSmoothed) {
  const std::vector<RunRecord> runs = {noisy("r", 50, 3)};
  const LineChart chart = loss_chart(runs, {.smooth = 0.9});
  const std::string svg = svg_of(runs, 0.9);
  const SvgPlot found = read_svg(svg);
  ASSERT_EQ(found.raw.size(), 1U);
  EXPECT_NEAR(found.raw[0][20].y, chart.lines[0].points[20].y, found.y_rounding);
  EXPECT_EQ(found.curves[0].title, "training, smoothed");
  EXPECT_NEAR(found.curves[0].lines[0][20].y, chart.lines[1].points[20].y, found.y_rounding);
  EXPECT_LT(svg.find("<g class=\"line faint"), svg.find("<g class=\"line whole"));
}

TEST(ChartFile, EvaluationsLieOnTop) {
  std::vector<std::string> titles;
  for (const SvgCurve& curve : read_svg(svg_of({noisy("a", 50, 3), noisy("b", 50, 3)})).curves) {
    titles.push_back(curve.title);
  }
  EXPECT_THAT(titles, ::testing::ElementsAre("a, training", "b, training", "a, evaluation",
                                             "b, evaluation"));
}

TEST(ChartFile, RunsDifferInColorAndShapeAndKindsInDashes) {
  std::vector<RunRecord> runs;
  for (int i = 0; i < 26; ++i) {
    runs.push_back(noisy(std::string(1, static_cast<char>('a' + i)), 30, 2 + i));
  }
  const SvgPlot found = read_svg(svg_of(runs));
  ASSERT_EQ(found.curves.size(), 52U);
  std::set<std::string> looks;
  for (const SvgCurve& curve : found.curves) {
    looks.insert(concat(curve.color, " ", curve.dashes, " ", curve.shape));
    EXPECT_EQ(curve.dashes.empty(), curve.title.find("evaluation") == std::string::npos);
    EXPECT_NE(curve.shape, "") << curve.title;
  }
  EXPECT_EQ(looks.size(), 52U);
}

TEST(ChartFile, NeedsNothingAndEscapesNames) {
  const std::string svg = svg_of({noisy("<a> & \"b\"\x1b\xff", 30, 3), noisy("b", 30, 3)});
  EXPECT_THAT(svg, HasSubstr(">&lt;a&gt; &amp; &quot;b&quot;??, training</"));
  EXPECT_THAT(svg, Not(HasSubstr("<style")));
  EXPECT_THAT(svg, Not(HasSubstr("href")));
  EXPECT_THAT(svg, HasSubstr(">steps</text>"));
  EXPECT_THAT(svg, HasSubstr(">Loss, per token</text>"));
}

TEST(ChartFile, LongRunsStaySmall) {
  const std::string svg = svg_of({noisy("r", 100000, 3)});
  EXPECT_LE(read_svg(svg).curves[0].lines[0].size(), 4U * 860);
  EXPECT_LT(svg.size(), 200000U);
}

TEST(PlotRuns, WritesAFileOrReturnsATable) {
  const data::TempDir dir;
  std::string lines;
  for (int i = 1; i <= 3; ++i) {
    lines += concat("{\"step\":", i, ",\"loss\":",
                    i == 2   ? "\"nan\""
                    : i == 1 ? "2.5"
                             : "2.25",
                    ",\"tokens\":8,\"step_time_ms\":1}\n");
  }
  dir.write("r/metrics.jsonl", lines);
  PlotOptions options{.runs = {dir.file("r")}};
  const std::string note = "note: r: 1 of 3 training losses is not finite: a gap\n";
  EXPECT_EQ(plot_runs(options),
            "loss per token  first  last  lowest  at (steps)\n"
            "training          2.5  2.25    2.25           3\n" +
                note);
  options.out = dir.file("r.svg");
  EXPECT_EQ(plot_runs(options), "wrote " + options.out + ": 1 curve of 1 run\n" + note);
  EXPECT_EQ(read_svg(dir.read("r.svg")).curves.size(), 1U);
  options.out = dir.file("r.png");
  EXPECT_ERROR(plot_runs(options), ValueError, "expected a name that ends in .svg");
  options.out = dir.file("nowhere/r.svg");
  EXPECT_ERROR(plot_runs(options), IoError, "nowhere/r.svg");
  options.out.clear();
  for (const double smooth : {-0.1, 1.0, std::nan("")}) {
    options.smooth = smooth;
    EXPECT_ERROR(plot_runs(options), ValueError, "expected a number from 0 to below 1");
  }
}

TEST(PlotRuns, ATableAlignsItsNumbers) {
  const data::TempDir dir;
  const std::string step =
      "{\"step\":1,\"loss\":11.5,\"tokens\":8,\"step_time_ms\":1,"
      "\"eval_loss\":3}\n";
  dir.write("Läufe/中/metrics.jsonl", step);
  dir.write("Läufe/b/metrics.jsonl", step);
  EXPECT_EQ(plot_runs({.runs = {dir.file("Läufe/中"), dir.file("Läufe/b")}, .x = "tokens"}),
            "loss per token  first  last  lowest  at (tokens)\n"
            "中, training     11.5  11.5    11.5            8\n"
            "b, training      11.5  11.5    11.5            8\n"
            "中, evaluation      3     3       3            8\n"
            "b, evaluation       3     3       3            8\n");
}

// The longest run decides the unit of time; all runs are in it.
TEST(PlotRuns, TimeHasTheUnitOfTheLongestRun) {
  std::vector<RunRecord> runs = {noisy("a", 3, 3), noisy("b", 3, 3)};
  const ChartOptions time{.x = plot::XAxis::kTime, .smooth = 0};
  EXPECT_EQ(x_title_of(runs, time), "seconds of steps");
  runs[1].columns["step_time_ms"] = {6e4, 6e4, 6e4};
  EXPECT_EQ(x_title_of(runs, time), "minutes of steps");
  const LineChart chart = loss_chart(runs, time);
  EXPECT_DOUBLE_EQ(chart.lines[0].points[2].x, 0.05);
  EXPECT_DOUBLE_EQ(chart.lines[1].points[2].x, 3);
  EXPECT_DOUBLE_EQ(chart.x.high, 3);
}

TEST(PlotRuns, ARunOfOneStepHasAnAxis) {
  for (const plot::XAxis x : {plot::XAxis::kSteps, plot::XAxis::kTokens, plot::XAxis::kTime}) {
    EXPECT_GT(loss_chart({noisy("r", 1, 3)}, {.x = x, .smooth = 0}).x.length(), 0);
  }
}

}  // namespace
}  // namespace tapestry::report

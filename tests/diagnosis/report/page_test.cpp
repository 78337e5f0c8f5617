#include "diagnosis/report/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/tensor/error.h"
#include "tests/diagnosis/report/html_reader.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RunRecord some_run(const std::string& name, int steps = 20) {
  RunRecord run{.name = name, .folder = "runs/" + name};
  for (int step = 1; step <= steps; ++step) {
    run.steps.push_back(step);
    run.columns["loss"].push_back(5.0 / step);
    run.columns["lr"].push_back(0.001 * step);
    run.columns["grad_norm"].push_back(1);
    run.columns["tokens"].push_back(1000);
    run.columns["step_time_ms"].push_back(step == 1 ? 1000 : 500);
    run.columns["peak_bytes"].push_back(3.0 * (1 << 20));
    run.columns["loss_scale"].push_back(1);
    run.columns["eval_loss"].push_back(step % 10 == 0 ? 6.0 / step : std::nan(""));
  }
  return run;
}

std::vector<ConfigEntry> config(const std::string& lr) {
  return {{"training_config", "training_iters", "40", "run.yaml:2"},
          {"training_config", "seed", "1234", "default"},
          {"optimizer_config", "learning_rate", lr, "--set"}};
}

std::string page_of(const std::vector<RunRecord>& runs, const PageOptions& options = {}) {
  std::string page = report_page(runs, options);
  expect_well_formed(page);
  return page;
}

TEST(ReportPage, ShowsTheFiguresOfARun) {
  RunRecord run = some_run("small");
  run.config = config("0.001");
  const std::string page = page_of({run});
  for (const char* text :
       {"<dt>Steps</dt><dd>20<small>of 40</small>", "<dt>Tokens</dt><dd>20 k",
        "<dt>Last loss</dt><dd>0.25<",
        "<dt>Lowest evaluation</dt><dd>0.3<small>"
        "step 20, perplexity 1.35</small>",
        "<dt>Time of the steps</dt><dd>10.5 s<",
        "<dt>Throughput</dt><dd>2,000<small>tokens/s, median</small>",
        "<dt>Peak memory</dt><dd>3.0 MiB<small>rank 0</small>",
        "<dt>Steps without update</dt><dd>0<", "Every step has updated the weights."}) {
    EXPECT_THAT(page, Says(text));
  }
  EXPECT_THAT(page, Not(HasSubstr("Test loss")));  // there was none
}

TEST(ReportPage, ChartsHaveTheNumbers) {
  const std::string page = page_of({some_run("small")});
  const auto loss = read_chart(page, "Loss");
  ASSERT_EQ(loss.size(), 2U);
  EXPECT_EQ(loss[0].label, "training");
  EXPECT_EQ(loss[1].label, "evaluation");
  ASSERT_EQ(loss[0].points.size(), 20U);
  EXPECT_EQ(loss[0].points[4].x, 5);
  EXPECT_NEAR(loss[0].points[4].y, 1, 1e-3);
  ASSERT_EQ(loss[1].points.size(), 2U);
  EXPECT_EQ(loss[1].points[1].x, 20);
  EXPECT_NEAR(read_chart(page, "Throughput")[0].points[7].y, 2000, 0.1);
  EXPECT_NEAR(read_chart(page, "Peak memory")[0].points[0].y, 3, 1e-3);
  EXPECT_NEAR(read_chart(page, "Learning rate")[0].points[9].y, 0.01, 1e-6);
  EXPECT_THAT(page, Not(HasSubstr("<b>Loss scale</b>")));  // it was 1 all the time
}

TEST(ReportPage, NeedsNothingFromOutside) {
  const std::string page = page_of({some_run("a"), some_run("b")});
  for (const char* word : {"http:", "https:", "src=", "href=", "url(", "@import", "fetch("}) {
    EXPECT_THAT(page, Not(Says(word)));
  }
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, HasSubstr("width=device-width"));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme:dark"));
}

TEST(ReportPage, EveryTextIsEscaped) {
  const std::string evil = "</title><script>alert('x')</script>\x1b[31m\"&";
  RunRecord run = some_run(evil);
  run.folder = evil;
  run.notes = {evil};
  run.health = {{evil, false}};
  run.memory = {{evil, 1, 2}};
  run.config = {{evil, evil, evil, evil}};
  run.tables["<t>"][evil].add(1, 2);
  run.columns["<col>"] = std::vector<double>(20, 1);
  RunRecord other = some_run("other");
  other.config = {{evil, evil, "1", "--set"}};
  for (const auto& runs : {std::vector<RunRecord>{run}, std::vector<RunRecord>{run, other}}) {
    const std::string page = page_of(runs, {.made = evil});
    EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
    EXPECT_THAT(page, Not(HasSubstr("alert('x')")));
    EXPECT_THAT(page, Not(HasSubstr("\x1b")));
    EXPECT_THAT(page, Not(HasSubstr("<col>")));
    EXPECT_THAT(page, Not(HasSubstr("<t>")));
  }
}

TEST(ReportPage, RunsSideBySide) {
  RunRecord a = some_run("a");
  RunRecord b = some_run("b", 10);
  a.config = config("0.001");
  b.config = config("0.002");
  const std::string page = page_of({a, b});
  EXPECT_THAT(page, Says("2 ... runs side by side"));
  EXPECT_THAT(page,
              HasSubstr("<tr><th scope=\"row\">Last loss</th><td>0.25</td><td>0.5</td></tr>"));
  EXPECT_THAT(page, HasSubstr("<input type=\"checkbox\" value=\"1\" checked hidden>"));
  const auto loss = read_chart(page, "Loss");
  ASSERT_EQ(loss.size(), 4U);
  EXPECT_EQ(loss[0].label, "a, training");
  EXPECT_EQ(loss[1].label, "b, training");
  EXPECT_EQ(loss[1].points.size(), 10U);
  const std::string differences =
      part_between(page, "<h2>Configuration: differences</h2>", "<details>");
  EXPECT_THAT(differences, HasSubstr("<tr><th scope=\"row\">learning_rate</th><td>0.001</td>"
                                     "<td class=\"own\">0.002</td></tr>"));
  EXPECT_THAT(differences, Not(HasSubstr("seed")));
  EXPECT_THAT(page, HasSubstr("<summary>All 3 keys</summary>"));
  b.config = a.config;
  EXPECT_THAT(page_of({a, b}), Says("are the same."));
}

TEST(ReportPage, OfOneRunShowsWhatWasGiven) {
  RunRecord run = some_run("a");
  run.config = config("0.001");
  const std::string page = page_of({run});
  const std::string given = part_between(page, "<h2>Configuration</h2>", "<details>");
  EXPECT_THAT(given, HasSubstr("<tr><th scope=\"row\">learning_rate</th><td>0.001</td>"
                               "<td class=\"soft\">--set</td></tr>"));
  EXPECT_THAT(given, Not(HasSubstr("seed")));
}

TEST(ReportPage, HealthAndStepsWithoutAnUpdate) {
  RunRecord run = some_run("a");
  run.not_finite = {3, 4, 5};
  run.skipped = {9};
  run.health = {{"step_00000010", true}, {"step_00000020", false}};
  const std::string page = page_of({run});
  EXPECT_THAT(page, Says("3 ... gradients were not ... finite</span>: 3-5."));
  EXPECT_THAT(page, Says("1 ... skipped for the global ... norm</span>: 9."));
  EXPECT_THAT(page, HasSubstr("<dt>Steps without update</dt><dd>4<"));
  EXPECT_THAT(page, HasSubstr("<details open><summary>2 checkpoints recorded, 1 unhealthy"));
  EXPECT_THAT(page, HasSubstr("step_00000020</td><td class=\"bad\">unhealthy"));
  EXPECT_THAT(page, HasSubstr("class=\"marks\" d=\"M3,97000V100000M4,"));
}

TEST(ReportPage, OtherNumbersHaveChartsToo) {
  RunRecord run = some_run("a");
  run.columns["device_local_norm"] = std::vector<double>(20, 0.5);
  run.columns["bubble/measured"] = std::vector<double>(20, 0.125);
  run.columns["bubble/theoretical"] = std::vector<double>(20, 0.1);
  run.columns["lr/1"] = std::vector<double>(20, 0.02);
  run.columns["loss_scale"][3] = 2;
  const std::string page = page_of({run});
  EXPECT_THAT(part_between(page, "<h2>More numbers</h2>", "<h2>"),
              HasSubstr("<b>device_local_norm</b>"));
  EXPECT_NEAR(read_chart(page, "Pipeline bubble")[0].points[3].y, 12.5, 1e-3);
  EXPECT_EQ(read_chart(page, "Learning rate")[1].label, "group 1");
  EXPECT_THAT(page, HasSubstr("<b>Loss scale</b>"));
}

TEST(ReportPage, MonitorsOfTheRunAndOfItsRanks) {
  RunRecord run = some_run("a");
  run.columns["monitor/weight_norm"] = std::vector<double>(20, std::nan(""));
  run.columns["monitor/weight_norm"][9] = 7;  // measured every ten steps
  run.columns["monitor/weight_norm"][19] = 8;
  run.columns["ranks/device_local_norm/0"] = std::vector<double>(20, 1);
  run.columns["ranks/device_local_norm/1"] = std::vector<double>(20, 2);
  const std::string page = page_of({run});
  const auto norm = read_chart(page, "weight_norm");
  ASSERT_EQ(norm.size(), 1U);
  ASSERT_EQ(norm[0].points.size(), 2U);
  EXPECT_EQ(norm[0].points[0].x, 10);
  const auto ranks = read_chart(page, "device_local_norm of each rank");
  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_EQ(ranks[1].label, "rank 1");
  EXPECT_THAT(page, HasSubstr("<span class=\"sample whole d0\"></span>rank 1"));
}

TEST(ReportPage, TablesByName) {
  RunRecord run = some_run("a");
  for (int step = 1; step <= 20; ++step) {
    run.tables["grad_norms"]["layers.0.weight"].add(step, step == 7 ? 30 : 2);
  }
  run.tables["grad_norms"]["layers.1.weight"].add(1, std::nan(""));
  const std::string page = page_of({run});
  EXPECT_THAT(page, HasSubstr("grad_norms</span>, 2 names"));
  EXPECT_THAT(page, HasSubstr("<td class=\"num\">2</td><td class=\"num\">2</td>"
                              "<td class=\"num\">30</td><td class=\"num\">7</td>"));
  EXPECT_THAT(page, HasSubstr("never finite"));
}

TEST(ReportPage, OverTokensAndTime) {
  const std::string tokens = page_of({some_run("a")}, {.charts = {.x = plot::XAxis::kTokens}});
  EXPECT_EQ(read_chart(tokens, "Loss")[0].points[4].x, 5000);
  EXPECT_THAT(tokens, HasSubstr("<body data-x=\"tokens\">"));
  const std::string time = page_of({some_run("a")}, {.charts = {.x = plot::XAxis::kTime}});
  EXPECT_NEAR(read_chart(time, "Loss")[0].points[4].x, 3, 1e-3);
  EXPECT_THAT(time, HasSubstr("Charts are drawn over seconds of steps."));
}

TEST(ReportPage, ManyStepsAreSmoothed) {
  const std::string page = page_of({some_run("a", 500)});
  EXPECT_EQ(read_chart(page, "Loss")[0].kind, "faint");
  EXPECT_EQ(read_chart(page, "Loss")[1].label, "training, smoothed");
  const std::string raw = page_of({some_run("a", 500)}, {.charts = {.smooth = 0.0}});
  EXPECT_EQ(read_chart(raw, "Loss")[0].label, "training");
}

TEST(ReportPage, ARunWithoutMuchIsStillAPage) {
  RunRecord run{.name = "a", .folder = "a", .steps = {1}};
  run.columns["loss"] = {std::nan("")};
  EXPECT_THAT(page_of({run}), HasSubstr("not finite"));
}

TEST(ReportPage, HasAtMost26Runs) {
  std::vector<RunRecord> runs;
  for (int i = 0; i < 26; ++i) {
    runs.push_back(some_run(std::to_string(i)));
  }
  page_of(runs);
  runs.push_back(some_run("one more"));
  EXPECT_ERROR(report_page(runs, {}), ValueError, "27 ... runs; a report shows ... 1 ... 26");
}

}  // namespace
}  // namespace tapestry::report

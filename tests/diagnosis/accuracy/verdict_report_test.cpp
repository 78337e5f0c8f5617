#include "diagnosis/report/verdict_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "autograd/tensor/error.h"
#include "tests/diagnosis/report/html_reader.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::accuracy {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kInf = std::numeric_limits<double>::infinity();

VerdictReport sample_report() {
  return {
      .command = "checklist",
      .outcome = Outcome::kDiffers,
      .stage = "config",
      .first = FirstDifference{.step = 3, .tensor = "lr", .distance = kInf, .bound = 0.5},
      .findings = {{{"key", "hidden_size"}, {"ours", 64}, {"other", 128}, {"status", "differs"}},
                   {{"key", "eps"},
                    {"ours", 1e-5},
                    {"other", std::nan("")},
                    {"status", "same"},
                    {"advice", "none"}}},
      .title = "a & b",
      .lines = {"Two <configurations>."}};
}

TEST(VerdictReport, JsonHasAllKeysInOrder) {
  const std::string text = report_json(sample_report());
  const auto read = nlohmann::ordered_json::parse(text);
  std::vector<std::string> keys;
  for (const auto& [key, value] : read.items()) {
    keys.push_back(key);
  }
  EXPECT_THAT(keys, ::testing::ElementsAre("command", "verdict", "stage", "first", "findings"));
  keys.clear();
  for (const auto& [key, value] : read["first"].items()) {
    keys.push_back(key);
  }
  EXPECT_THAT(
      keys, ::testing::ElementsAre("step", "micro_batch", "sample", "rank", "pass", "module", "op",
                                   "tensor", "source", "distance", "bound"));
  EXPECT_EQ(read["command"], "checklist");
  EXPECT_EQ(read["verdict"], "differ");
  EXPECT_EQ(read["stage"], "config");
  EXPECT_EQ(read["first"]["step"], 3);
  EXPECT_TRUE(read["first"]["rank"].is_null());
  EXPECT_EQ(read["first"]["bound"], 0.5);
  EXPECT_EQ(read["findings"][0]["other"], 128);
}

TEST(VerdictReport, WhatJsonHasNoNumbersForIsText) {
  VerdictReport report = sample_report();
  report.findings.push_back({{"nested", {{"deep", {1.0, -kInf}}}}});
  const json read = json::parse(report_json(report));
  EXPECT_EQ(read["first"]["distance"], "inf");
  EXPECT_EQ(read["findings"][1]["other"], "nan");
  EXPECT_EQ(read["findings"][2]["nested"]["deep"], json({1.0, "-inf"}));
}

TEST(VerdictReport, JsonTakesBytesThatAreNoText) {
  VerdictReport report = sample_report();
  report.stage = "\xff!";
  EXPECT_EQ(json::parse(report_json(report))["stage"], "\xef\xbf\xbd!");
}

TEST(VerdictReport, WithoutADifferenceFirstAndStageAreNull) {
  const json read = json::parse(report_json({.command = "curves", .verdict = "accepted"}));
  EXPECT_EQ(read["verdict"], "accepted");
  EXPECT_TRUE(read["stage"].is_null());
  EXPECT_TRUE(read["first"].is_null());
  EXPECT_EQ(read["findings"], json::array());
}

TEST(VerdictReport, OutcomesAreExitCodes) {
  EXPECT_EQ((VerdictReport{.outcome = Outcome::kAgrees}.exit_code()), 0);
  EXPECT_EQ((VerdictReport{.outcome = Outcome::kDiffers}.exit_code()), 1);
  EXPECT_EQ((VerdictReport{.outcome = Outcome::kNotComparable}.exit_code()), 2);
  EXPECT_EQ(verdict_of(Outcome::kAgrees), "agree");
  EXPECT_EQ(verdict_of(Outcome::kNotComparable), "not_comparable");
}

TEST(VerdictReport, TextSaysWhereAndWhat) {
  EXPECT_EQ(report_text(sample_report()),
            "checklist: differ, at stage config\n"
            "first: step 3, tensor lr, distance inf, bound 0.5\n"
            "Two <configurations>.\n"
            "\n"
            "  key          ours   other  status   advice\n"
            "! hidden_size  64     128    differs\n"
            "  eps          1e-05  nan    same     none\n"
            "\n"
            "checklist: differ, at stage config\n");
}

TEST(VerdictReport, TextCannotSteerATerminalAndNamesWhatItLeavesOut) {
  VerdictReport report = sample_report();
  report.lines = {"\x1b[2Jgone"};
  report.findings[0]["key"] = "a\nb";
  report.text_rows = 1;
  const std::string text = report_text(report);
  EXPECT_THAT(text, HasSubstr("?[2Jgone\n"));
  EXPECT_THAT(text, HasSubstr("\na?b "));
  EXPECT_THAT(text, Says("1 ... more ... --json FILE ... all\n"));
  EXPECT_THAT(text, Not(HasSubstr("eps")));
}

TEST(VerdictReport, AFindingIsAnObject) {
  VerdictReport report = sample_report();
  report.findings.push_back(3);
  try {
    report_text(report);
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(), HasSubstr("a finding is 3; expected an object"));
  }
}

TEST(VerdictReport, PageIsWholeAndEscaped) {
  VerdictReport report = sample_report();
  report.findings[0]["other"] = "<script>alert(1)</script>";
  report.chart_runs = {"a\"b", "c"};
  report.charts = {{.title = "loss",
                    .unit = "",
                    .lines = {{.run = 1, .owner = "c", .name = "loss", .points = {{1, 2}, {2, 3}}}},
                    .x = {1, 2}}};
  const std::string page = report_html(report, "made <now>");
  report::expect_well_formed(page);
  EXPECT_THAT(page, HasSubstr("<h1>a &amp; b</h1>"));
  EXPECT_THAT(page, HasSubstr("<dt>Verdict</dt><dd class=\"bad\">differ</dd>"));
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;alert(1)"));
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(page, HasSubstr("<p>Two &lt;configurations&gt;.</p>"));
  EXPECT_THAT(page, HasSubstr("<td class=\"bad\">differs</td>"));
  EXPECT_THAT(page, HasSubstr("<footer>made &lt;now&gt;</footer>"));
  EXPECT_THAT(page, HasSubstr("a&quot;b</label>"));
  ASSERT_EQ(report::read_chart(page, "loss").size(), 1U);
  EXPECT_EQ(report::read_chart(page, "loss")[0].points.size(), 2U);
}

TEST(VerdictReport, FilesAreCheckedBeforeTheWork) {
  const data::TempDir dir;
  const auto message = [](const ReportFiles& files) -> std::string {
    try {
      check_report_files(files);
      return "none";
    } catch (const ValueError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(message({}), "none");
  EXPECT_EQ(message({.html = dir.file("a.html"), .json = dir.file("a.json")}), "none");
  EXPECT_THAT(message({.html = "a.txt"}), HasSubstr("--html is 'a.txt'; expected"));
  EXPECT_THAT(message({.json = "a"}), HasSubstr("ends in .json"));
  EXPECT_THAT(message({.json = dir.file("b/a.json")}), HasSubstr("there is no folder"));
}

TEST(VerdictReport, WritesBothFiles) {
  const data::TempDir dir;
  const ReportFiles files{.html = dir.file("a.html"), .json = dir.file("a.json")};
  EXPECT_EQ(write_report_files(sample_report(), files),
            "wrote " + files.html + "\nwrote " + files.json + "\n");
  EXPECT_EQ(dir.read("a.json"), report_json(sample_report()));
  EXPECT_THAT(dir.read("a.html"), HasSubstr("by accuracy checklist</footer>"));
  EXPECT_EQ(write_report_files(sample_report(), {}), "");
}

}  // namespace
}  // namespace tapestry::accuracy

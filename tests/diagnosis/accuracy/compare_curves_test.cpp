#include "diagnosis/accuracy/compare_curves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "autograd/tensor/error.h"
#include "tests/diagnosis/accuracy/made_up_curves.h"
#include "tests/diagnosis/report/html_reader.h"
#include "tests/says.h"

namespace tapestry::accuracy {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

CurveComparison compare_runs(const std::vector<CurveRun>& runs) {
  return compare_curves(runs.front(), {runs.begin() + 1, runs.end()}, {});
}

std::string refusal(const std::vector<CurveRun>& runs) {
  try {
    compare_runs(runs);
    return "none";
  } catch (const ValueError& error) {
    return error.what();
  }
}

class MadeUpCurves : public ::testing::TestWithParam<MadeUpCase> {};

// Seeds beyond the first show that bounds hold with room, and not by chance.
TEST_P(MadeUpCurves, AreJudgedRight) {
  const MadeUpCase& made_up = GetParam();
  constexpr uint64_t kSeeds = 3;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const VerdictReport report = compare_runs(make_up(made_up, seed)).report;
    EXPECT_EQ(report.verdict, made_up.verdict) << "seed " << seed << "\n" << report_text(report);
    const std::set<std::string> mild = {"accepted", "within_references", "close"};
    EXPECT_EQ(report.exit_code(), mild.count(made_up.verdict) == 1 ? 0 : 1);
    ASSERT_EQ(report.first.has_value(), mild.count(made_up.verdict) == 0);
    if (report.first) {
      const int64_t begins = made_up.begins == 0 ? made_up.interval : made_up.begins;
      EXPECT_NEAR(static_cast<double>(*report.first->step), static_cast<double>(begins),
                  static_cast<double>(made_up.tolerance))
          << "seed " << seed << "\n"
          << report_text(report);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Thirty,
                         MadeUpCurves,
                         ::testing::ValuesIn(made_up_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(MadeUpCurvesTable, HasThirtyCasesOfEveryVerdict) {
  std::map<std::string, int> count;
  for (const MadeUpCase& made_up : made_up_cases()) {
    ++count[made_up.verdict];
  }
  EXPECT_EQ(made_up_cases().size(), 30U);
  EXPECT_EQ(count.size(), 6U);
}

// A rise to 1.4 % of the loss over the last 40 % of a run is below the bound in nearly all steps,
// and its last quarter is below 1 % in the mean.
TEST(CompareCurves, ADriftIsJudgedByWhereItEndsUp) {
  for (const double last_loss : {2.0, 3.0}) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      const auto run_with = [&](double end) {
        return compare_runs(
                   make_up({"", "", 2000, 9, last_loss, {0.004, 0.5}, drift(0.6, end * last_loss)},
                           seed))
            .report;
      };
      const VerdictReport found = run_with(0.014);
      EXPECT_EQ(found.verdict, "late_drift") << "seed " << seed << "\n" << report_text(found);
      EXPECT_NEAR(static_cast<double>(*found.first->step), 1200, 250);
      EXPECT_EQ(run_with(0.002).exit_code(), 0);
    }
  }
}

TEST(CompareCurves, ASpikeIsPlacedWhereItIs) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    for (const int64_t width : {1, 2, 5}) {
      const auto spike = [&](double, int64_t step, double) {
        return step >= 700 && step < 700 + width ? 1.5 : 0.0;
      };
      const VerdictReport report =
          compare_runs(make_up({"", "", 1000, 9, 3, {0.006, 0.5}, spike}, seed)).report;
      ASSERT_EQ(report.verdict, "jump") << "width " << width << "\n" << report_text(report);
      EXPECT_EQ(report.first->step, 700) << "seed " << seed << ", width " << width;
    }
  }
}

CurveRun plain_run(const std::string& name, std::vector<int64_t> steps, double loss) {
  CurveRun run{.name = name, .steps = std::move(steps)};
  run.loss.assign(run.steps.size(), loss);
  return run;
}

TEST(CompareCurves, TheSameRunIsAccepted) {
  const std::vector<CurveRun> runs = make_up(made_up_cases().front(), 5);
  const VerdictReport report = compare_runs({runs[0], runs[0]}).report;
  EXPECT_EQ(report.verdict, "accepted");
  EXPECT_EQ(report.findings[0]["largest_difference"], 0);
  EXPECT_EQ(report.findings[1]["quantity"], "grad_norm");
  EXPECT_EQ(report.findings[1]["mean_relative_error"], 0);
}

TEST(CompareCurves, OneReferenceMoreSpansWhatOneDoesNot) {
  MadeUpCase made_up = made_up_cases()[5];
  ASSERT_STREQ(made_up.verdict, "within_references");
  const std::vector<CurveRun> runs = make_up(made_up, 1);
  EXPECT_EQ(compare_runs(runs).report.verdict, "within_references");
  EXPECT_NE(compare_runs({runs[0], runs[1]}).report.verdict, "within_references");
}

TEST(CompareCurves, TakesTheStepsThatAllHave) {
  const VerdictReport report =
      compare_runs({plain_run("a", {1, 2, 3, 4, 6}, 2), plain_run("b", {2, 4, 5, 6, 8}, 2)}).report;
  EXPECT_EQ(report.findings[0]["steps"], 3);
  EXPECT_EQ(report.verdict, "accepted");
  EXPECT_THAT(report_text(report), Says("3 ... tell whether it is ... one-sided"));
  EXPECT_THAT(report_text(report), Says("norms are not compared"));
}

TEST(CompareCurves, ConstantGapIsOneSidedWithoutAnyNoise) {
  const std::vector<int64_t> steps = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const VerdictReport report =
      compare_runs({plain_run("a", steps, 2.01), plain_run("b", steps, 2)}).report;
  EXPECT_EQ(report.verdict, "one_sided");
  EXPECT_EQ(report.first->tensor, "loss");
  EXPECT_NEAR(*report.first->distance, 0.01, 1e-12);
  EXPECT_NEAR(report.findings[0]["mean_relative_error"].get<double>(), 0.005, 1e-12);
}

TEST(CompareCurves, OursThatIsNeverFiniteIsAJumpAtTheFirstStep) {
  const std::vector<int64_t> steps = {1, 2, 3};
  const CurveComparison comparison =
      compare_runs({plain_run("a", steps, std::nan("")), plain_run("b", steps, 2)});
  EXPECT_EQ(comparison.report.verdict, "jump");
  EXPECT_EQ(comparison.report.first->step, 1);
  EXPECT_THAT(report_json(comparison.report), HasSubstr("\"distance\": \"inf\""));
  EXPECT_THAT(comparison.differences, HasSubstr("\n1,nan,2,,,"));
}

TEST(CompareCurves, StepsOfAReferenceThatIsNotFiniteAreLeftOutAndCounted) {
  CurveRun reference = plain_run("b", {1, 2, 3}, 2);
  reference.loss[1] = std::numeric_limits<double>::infinity();
  const VerdictReport report = compare_runs({plain_run("a", {1, 2, 3}, 2), reference}).report;
  EXPECT_EQ(report.findings[0]["steps"], 2);
  EXPECT_THAT(report_text(report), Says("loss: ... 1 ... 3 ... and are left out"));
}

TEST(CompareCurves, RefusesWhatCannotBeCompared) {
  EXPECT_THAT(refusal({plain_run("a", {1, 2}, 2), plain_run("b", {3, 4, 5}, 2)}),
              HasSubstr("no step in common: a has 2 steps from 1 to 2, b has 3 steps from 3 to 5"));
  EXPECT_THAT(refusal({plain_run("a", {1, 2}, 2), plain_run("b", {1, 2}, std::nan(""))}),
              HasSubstr("finite in none of the 2 common steps"));
  EXPECT_THAT(refusal({plain_run("a", {1, 2}, 2)}), HasSubstr("name a reference"));
}

TEST(CompareCurves, PageShowsCurvesDifferencesAndBand) {
  MadeUpCase made_up = made_up_cases()[5];
  made_up.steps = 100;  // long lines are more than regular expressions can take
  const std::vector<CurveRun> runs = make_up(made_up, 1);
  const std::string page = report_html(compare_runs(runs).report, "");
  report::expect_well_formed(page);
  EXPECT_EQ(report::read_chart(page, "loss").size(), 3U);
  EXPECT_EQ(report::read_chart(page, "loss: difference").size(), 4U);
  EXPECT_EQ(report::read_chart(page, "grad_norm").size(), 3U);
}

TEST(CompareCurves, TableHasADifferenceForEachStep) {
  const std::string table =
      compare_runs({plain_run("a", {1, 2}, 2.5), plain_run("b", {1, 2}, 2)}).differences;
  EXPECT_EQ(table,
            "step,loss_ours,loss_reference,loss_difference,loss_window_mean,loss_band\n"
            "1,2.5,2,0.5,0.5,\n"
            "2,2.5,2,0.5,0.5,\n");
}

TEST(JudgeCurve, RefusesSizesThatDoNotAgree) {
  EXPECT_THROW(judge_curve({.name = "loss", .steps = {1}, .ours = {1}}, {}), ValueError);
  EXPECT_THROW(judge_curve({.name = "loss", .steps = {1}, .ours = {1, 2}, .references = {{1}}}, {}),
               ValueError);
  EXPECT_THROW(judge_curve({.name = "loss", .steps = {1}, .ours = {1}, .references = {{1, 2}}}, {}),
               ValueError);
}

}  // namespace
}  // namespace tapestry::accuracy

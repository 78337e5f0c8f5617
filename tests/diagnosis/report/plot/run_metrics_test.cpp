#include "diagnosis/report/plot/run_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "parallel_core/training/step/metrics.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::plot {
namespace {

using data::TempDir;

// A line as a training writes it.
std::string line(int64_t step, double loss, std::optional<double> eval_loss = {}) {
  StepRecord record{.step = step, .step_time_ms = 250, .eval_loss = eval_loss};
  StepResult result;
  result.loss = loss;
  result.tokens = 64;
  return metrics_line(record, result) + "\n";
}

std::vector<int64_t> steps_of(const RunMetrics& run) {
  std::vector<int64_t> steps;
  for (const StepLosses& step : run.steps) {
    steps.push_back(step.step);
  }
  return steps;
}

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(RunMetrics, AreWhatATrainingWrites) {
  const TempDir dir;
  const double third = 1.0 / 3;
  dir.write("run/metrics.jsonl", line(1, third) + line(2, 2 * third, 5 * third));
  for (const char* path : {"run", "run/", "run/metrics.jsonl"}) {
    const std::vector<RunMetrics> runs = read_metrics(dir.file(path));
    ASSERT_EQ(runs.size(), 1U);
    ASSERT_EQ(runs[0].steps.size(), 2U);
    EXPECT_EQ(runs[0].steps[0].step, 1);
    EXPECT_EQ(runs[0].steps[0].loss, third);
    EXPECT_EQ(runs[0].steps[0].tokens, 64);
    EXPECT_EQ(runs[0].steps[0].seconds, 0.25);
    EXPECT_FALSE(runs[0].steps[0].eval_loss.has_value());
    EXPECT_EQ(runs[0].steps[1].loss, 2 * third);
    EXPECT_EQ(runs[0].steps[1].eval_loss, 5 * third);
    EXPECT_THAT(runs[0].notes, IsEmpty());
  }
}

TEST(RunMetrics, LossesMayBeNotFinite) {
  const TempDir dir;
  const double inf = std::numeric_limits<double>::infinity();
  dir.write("metrics.jsonl", line(1, std::nan("")) + line(2, inf, -inf));
  const RunMetrics run = read_metrics(dir.path()).at(0);
  EXPECT_TRUE(std::isnan(run.steps[0].loss));
  EXPECT_EQ(run.steps[1].loss, inf);
  EXPECT_EQ(run.steps[1].eval_loss, -inf);
}

TEST(RunMetrics, StepsTrainedAgainReplaceTheEarlier) {
  const TempDir dir;
  dir.write("metrics.jsonl", line(1, 5) + line(2, 4) + line(3, 9) + line(4, 9) + line(3, 3) +
                                 line(4, 2) + line(5, 1));
  const std::vector<RunMetrics> runs = read_metrics(dir.path());
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_THAT(steps_of(runs[0]), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(runs[0].steps[2].loss, 3);
  EXPECT_THAT(runs[0].notes,
              ElementsAre("from step 3 on trained again; the earlier 2 steps are not drawn"));
}

TEST(RunMetrics, AFileMayHaveSeveralRuns) {
  const TempDir dir;
  dir.write("r/metrics.jsonl", line(1, 5) + line(2, 4) + line(1, 6) + line(2, 5) + line(3, 4));
  const std::vector<RunMetrics> runs = read_runs({dir.file("r")});
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_THAT(steps_of(runs[0]), ElementsAre(1, 2));
  EXPECT_THAT(steps_of(runs[1]), ElementsAre(1, 2, 3));
  EXPECT_EQ(runs[0].name, "r part 1");
  EXPECT_EQ(runs[1].name, "r part 2");
}

// As the file of a run is while it is written.
TEST(RunMetrics, ALastLineWithoutItsEndIsLeftOut) {
  const TempDir dir;
  const std::string second = line(2, 4);
  dir.write("metrics.jsonl", line(1, 5) + second.substr(0, second.size() / 2));
  const RunMetrics run = read_metrics(dir.path()).at(0);
  EXPECT_THAT(steps_of(run), ElementsAre(1));
  EXPECT_THAT(run.notes, ElementsAre(HasSubstr("incomplete")));
  // Without the line break alone it is whole.
  dir.write("metrics.jsonl", line(1, 5) + second.substr(0, second.size() - 1));
  EXPECT_THAT(steps_of(read_metrics(dir.path()).at(0)), ElementsAre(1, 2));
}

TEST(RunMetrics, NamesAreThePathsWithoutWhatTheyShare) {
  const TempDir dir;
  for (const char* name : {"runs/a", "runs/b", "runs/b/old/run_1", "other/b"}) {
    dir.write(std::string(name) + "/metrics.jsonl", line(1, 5));
  }
  const auto names = [&](std::vector<std::string> paths) {
    for (std::string& path : paths) {
      path = dir.file(path);
    }
    std::vector<std::string> found;
    for (const RunMetrics& run : read_runs(paths)) {
      found.push_back(run.name);
    }
    return found;
  };
  EXPECT_THAT(names({"runs/a"}), ElementsAre("a"));
  EXPECT_THAT(names({"runs/a/", "runs/b/metrics.jsonl"}), ElementsAre("a", "b"));
  EXPECT_THAT(names({"runs/b", "runs/b/old/run_1"}), ElementsAre("b", "b/old/run_1"));
  EXPECT_THAT(names({"runs/b", "other/b"}), ElementsAre("runs/b", "other/b"));
  EXPECT_ERROR(names({"runs/a", "runs/b", "runs/../runs/a/metrics.jsonl"}), ValueError,
               "is given twice");
}

TEST(RunMetrics, WhatIsNoRunIsRefused) {
  const TempDir dir;
  EXPECT_ERROR(read_metrics(dir.file("nothing")), IoError, "nothing: ... no such file or folder");
  EXPECT_ERROR(read_metrics(dir.path()), IoError,
               "has no metrics.jsonl; expected the output folder");
  dir.write("runs/a/metrics.jsonl", line(1, 5));
  EXPECT_ERROR(read_metrics(dir.file("runs")), IoError,
               "runs: has no metrics.jsonl; did you mean " + dir.file("runs/a") + "?");
  const auto refuses = [&](const std::string& content, const std::string& message) {
    dir.write("metrics.jsonl", content);
    EXPECT_ERROR(read_metrics(dir.path()), IoError, dir.file("metrics.jsonl") + message);
  };
  refuses("", "has not finished a step");
  refuses("\n\n", "has not finished a step");
  refuses("{\"step\":1,\"lo", "has not finished a step");
  refuses("training_config:\n  seed: 1\n", ":1: is not JSON");
  refuses(std::string("\0\xff\x80", 3), ":1: is not JSON");
  refuses("[1, 2]\n", ":1: is no JSON object");
  refuses(line(1, 5) + "{\"step\":2,\"lo\n" + line(3, 4), ":2: is not JSON");
  refuses(line(1, 5) + "{\"loss\":2}\n", ":2: 'step' is missing");
  refuses("{\"step\":0}\n", ":1: 'step' ... 0; ... expected a number from ... 1");
  refuses("{\"step\":1}\n", ":1: 'loss' is missing");
  refuses("{\"step\":1,\"loss\":null,\"tokens\":1,\"step_time_ms\":1}\n",
          ":1: 'loss' is null; expected a number");
  refuses("{\"step\":1,\"loss\":\"high\",\"tokens\":1,\"step_time_ms\":1}\n",
          ":1: 'loss' is \"high\"; expected a number");
  refuses("{\"step\":1,\"loss\":2,\"tokens\":-1,\"step_time_ms\":1}\n",
          ":1: 'tokens' ... -1; ... number, not below ... 0");
  refuses("{\"step\":1,\"loss\":2,\"tokens\":1,\"step_time_ms\":\"nan\"}\n", ":1: 'step_time_ms'");
  refuses("{\"step\":1,\"loss\":2,\"tokens\":1,\"step_time_ms\":1,\"eval_loss\":[]}\n",
          ":1: 'eval_loss' is []");
}

}  // namespace
}  // namespace tapestry::plot

#include "parallel_core/telemetry/mlflow_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "autograd/tensor/error.h"
#include "tests/temp_dir.h"

namespace tapestry::telemetry {
namespace {

class MlflowRunTest : public ::testing::Test {
 protected:
  MlflowRunOptions options(const std::string& experiment = "one") const {
    return {.store = dir_.file("mlruns"),
            .experiment = experiment,
            .run_name = "name",
            .source = "test"};
  }
  std::string read(const MlflowRun& run, const std::string& file) const {
    return dir_.read(std::filesystem::relative(run.folder() + "/" + file, dir_.path()).string());
  }
  bool has(const MlflowRun& run, const std::string& file) const {
    return std::filesystem::exists(run.folder() + "/" + file);
  }

  data::TempDir dir_;
};

TEST_F(MlflowRunTest, KeysAreThoseThatMlflowTakes) {
  EXPECT_EQ(MlflowRun::valid_key("monitor/local_norm/layers.0.w-1 x"),
            "monitor/local_norm/layers.0.w-1 x");
  EXPECT_EQ(MlflowRun::valid_key("a:b(\xc3\xa4)"), "a_b____");
  EXPECT_EQ(MlflowRun::valid_key("a/../b"), "_a_.._b");
  EXPECT_EQ(MlflowRun::valid_key("a//b"), "_a__b");
  EXPECT_EQ(MlflowRun::valid_key("/a"), "__a");
  EXPECT_EQ(MlflowRun::valid_key(".."), "_..");
  EXPECT_EQ(MlflowRun::valid_key("a/"), "_a_");
  EXPECT_EQ(MlflowRun::valid_key(""), "_");
}

TEST_F(MlflowRunTest, ValuesAreAppendedWhenTheyAreFlushed) {
  MlflowRun run(options());
  run.metric("loss", 2.5, 1000, 1);
  EXPECT_FALSE(has(run, "metrics/loss"));  // an empty file would be refused
  run.flush();
  run.metric("loss", std::numeric_limits<double>::quiet_NaN(), 2000, 2);
  run.metric("a/b", -std::numeric_limits<double>::infinity(), 2000, 2);
  run.flush();
  run.flush();
  EXPECT_EQ(read(run, "metrics/loss"), "1000 2.5 1\n2000 nan 2\n");
  EXPECT_EQ(read(run, "metrics/a/b"), "2000 -inf 2\n");
}

TEST_F(MlflowRunTest, GoesOnBehindAStepWithoutWhatWasCutOff) {
  MlflowRun run(options());
  for (int64_t step = 1; step <= 4; ++step) {
    run.metric("loss", 1, 1000 * step, step);
  }
  run.metric("late", 1, 4000, 4);
  run.flush();
  const std::string loss = run.folder() + "/metrics/loss";
  std::filesystem::resize_file(loss, std::filesystem::file_size(loss) - 2);
  MlflowRun again(options(), run.id());
  EXPECT_TRUE(again.goes_on());
  EXPECT_EQ(again.folder(), run.folder());
  again.keep_steps_until(3);
  EXPECT_EQ(read(run, "metrics/loss"), "1000 1 1\n2000 1 2\n3000 1 3\n");
  EXPECT_FALSE(has(run, "metrics/late"));
}

TEST_F(MlflowRunTest, ARunThatIsGoneIsMadeAnew) {
  MlflowRun run(options());
  std::filesystem::remove_all(run.folder());
  const MlflowRun again(options(), run.id());
  EXPECT_FALSE(again.goes_on());
  EXPECT_EQ(again.id().experiment, run.id().experiment);
  EXPECT_NE(again.id().run, run.id().run);
}

// Its number follows from the name: two jobs of one sweep may both find that it is not there.
TEST_F(MlflowRunTest, OneExperimentForEachName) {
  const MlflowRun one(options());
  const MlflowRun two(options("two"));
  EXPECT_NE(one.id().experiment, two.id().experiment);
  EXPECT_EQ(one.id().experiment.size(), 18U);
  EXPECT_EQ(MlflowRun(options()).id().experiment, one.id().experiment);
  EXPECT_EQ(MlflowRun(options("Default")).id().experiment, "0");
  // One that was deleted keeps its number, and one that MLflow has made is found by its name.
  std::filesystem::create_directories(dir_.file("mlruns/.trash"));
  std::filesystem::rename(dir_.file("mlruns/" + two.id().experiment),
                          dir_.file("mlruns/.trash/" + two.id().experiment));
  EXPECT_NE(MlflowRun(options("two")).id().experiment, two.id().experiment);
  std::filesystem::create_directories(dir_.file("mlruns/7"));
  dir_.write("mlruns/7/meta.yaml",
             "artifact_location: s3://bucket/7\nexperiment_id: '7'\nlifecycle_stage: active\n"
             "name: theirs\n");
  const MlflowRun theirs(options("theirs"));
  EXPECT_EQ(theirs.id().experiment, "7");
  theirs.artifact("config.yaml", "text");  // kept elsewhere
  EXPECT_FALSE(has(theirs, "artifacts/config.yaml"));
  EXPECT_THAT(read(theirs, "meta.yaml"),
              ::testing::HasSubstr("artifact_uri: \"s3://bucket/7/" + theirs.id().run));
}

TEST_F(MlflowRunTest, LongParametersAreCutBetweenCharacters) {
  const MlflowRun run(options());
  std::string text(5999, 'x');
  run.param("a.b", text + "\xc3\xa4" + "y");
  EXPECT_EQ(read(run, "params/a.b"), text);
}

TEST_F(MlflowRunTest, AFolderThatIsNoneIsAnError) {
  dir_.write("mlruns", "a file");
  EXPECT_THROW(MlflowRun{options()}, IoError);
}

}  // namespace
}  // namespace tapestry::telemetry

#include "parallel_core/training/watch/tensorboard_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/parallel_core/small_model.h"
#include "tests/parallel_core/tensorboard/event_reader.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace tensorboard_log_test {
namespace {

using report::read_records;
using report::Scalar;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::small_config;

std::map<std::string, double> by_tag(const std::vector<Scalar>& scalars) {
  std::map<std::string, double> values;
  for (const Scalar& scalar : scalars) {
    EXPECT_TRUE(values.emplace(scalar.tag, scalar.value).second) << scalar.tag;
  }
  return values;
}

StepResult some_result() {
  StepResult result;
  result.loss = 2.5;
  result.loss_scale = 1024;
  result.grad_norm = 0.75;
  result.lr = {1e-3, 1e-3, 5e-4};
  result.sequences = 32;
  return result;
}

TEST(StepScalars, HaveTheUsualNamesAndUnits) {
  const StepRecord record{.step = 3, .step_time_ms = 500, .eval_loss = 2.0};
  const TensorBoardRun run{.ranks = 4, .global_batch_size = 32, .model_flops = 6e12};
  const auto values = by_tag(step_scalars(record, some_result(), {}, run));
  const std::map<std::string, double> expected = {
      {"learning-rate", 1e-3},
      {"learning-rate/group_2", 5e-4},
      {"batch-size", 32},
      {"loss", 2.5},
      {"grad-norm", 0.75},
      {"model-flops-throughput-per-npu", 3},  // 6 TFLOP in half a second by 4 ranks
      {"B-samples-per-day", 64 * 86400 / 1e9},
      {"eval-loss", 2.0},
      {"eval-perplexity", std::exp(2.0)}};
  ASSERT_EQ(values.size(), expected.size());
  for (const auto& [tag, value] : expected) {
    EXPECT_DOUBLE_EQ(values.at(tag), value) << tag;
  }
}

// A step whose batch is still to grow.
TEST(StepScalars, RatesAreOfTheSequencesThatTheStepHad) {
  const StepRecord record{.step = 3, .step_time_ms = 500};
  const TensorBoardRun run{.ranks = 4, .global_batch_size = 32, .model_flops = 6e12};
  StepResult result = some_result();
  result.sequences = 8;
  const auto values = by_tag(step_scalars(record, result, {}, run));
  EXPECT_DOUBLE_EQ(values.at("batch-size"), 8);
  EXPECT_DOUBLE_EQ(values.at("model-flops-throughput-per-npu"), 0.75);
  EXPECT_DOUBLE_EQ(values.at("B-samples-per-day"), 16 * 86400 / 1e9);
}

TEST(StepScalars, LossScaleAndTimersAreAskedFor) {
  const StepRecord record{.step = 3, .step_time_ms = 500};
  const TensorBoardRun run{.ranks = 4, .global_batch_size = 32};
  TensorBoardConfig config;
  const auto without = by_tag(step_scalars(record, some_result(), config, run));
  EXPECT_EQ(without.count("loss-scale") + without.count("iteration-time"), 0U);
  EXPECT_EQ(without.count("throughput") + without.count("model-flops-throughput-per-npu"), 0U);
  config.log_loss_scale_to_tensorboard = true;
  EXPECT_EQ(by_tag(step_scalars(record, some_result(), config, run)).at("loss-scale"), 1024);
  config.log_timers_to_tensorboard = true;
  const auto with = by_tag(step_scalars(record, some_result(), config, run));
  EXPECT_EQ(with.at("iteration-time"), 500);
  EXPECT_EQ(with.at("throughput"), 16);
}

class TensorBoardLogTest : public ::testing::Test {
 protected:
  void log_steps(TensorBoardRun run, int64_t last) {
    run.global_batch_size = 8;
    TensorBoardLog log(config_, run);
    moved_to_ = log.moved_to();
    for (int64_t step = run.steps_done + 1; step <= last; ++step) {
      FinishedStep finished{.record = {.step = step, .step_time_ms = 1}, .result = some_result()};
      finished.result.loss = static_cast<double>(step);
      finished.result.sequences = 8;
      log.after(finished);
    }
  }
  std::vector<std::string> files(int rank = 0) const {
    return report::event_files_in(dir_.file("board/rank_" + std::to_string(rank)));
  }
  std::vector<report::ReadEvent> events(size_t file) const {
    return read_records(dir_.read(files().at(file).substr(dir_.path().size() + 1)));
  }

  data::TempDir dir_;
  AllConfig config_ = small_config(
      {"tensorboard.tensorboard_dir=" + dir_.file("board"), "training_config.output_dir=a|b<c"});
  std::string moved_to_;
};

TEST_F(TensorBoardLogTest, BeginsWithTheConfigurationAsText) {
  log_steps({}, 1);
  const auto all = events(0);
  std::vector<std::string> tags;
  std::string training;
  for (const report::ReadEvent& event : all) {
    for (const report::ReadValue& value : event.values) {
      if (value.kind == "text") {
        EXPECT_EQ(event.step, 0);
        tags.push_back(value.tag);
        training = value.tag == "training_config/text_summary" ? value.text : training;
      }
    }
  }
  EXPECT_THAT(tags,
              ::testing::IsSupersetOf({"training_config/text_summary", "model_config/text_summary",
                                       "tensorboard/text_summary"}));
  EXPECT_THAT(training, HasSubstr("| key | value | from |\n|---|---|---|\n"));
  EXPECT_THAT(training, HasSubstr("| eval_iters | 10 | default |\n"));
  EXPECT_THAT(training, HasSubstr("| output_dir | \"a&#124;b&lt;c\" | --set |\n"));
}

TEST_F(TensorBoardLogTest, GoesOnInAnotherFile) {
  log_steps({}, 6);
  log_steps({.steps_done = 4, .samples_done = 32}, 7);
  ASSERT_EQ(files().size(), 2U);
  EXPECT_EQ(events(0)[1].session_status, 1);
  EXPECT_EQ(events(0)[1].step, 1);
  EXPECT_EQ(events(1)[1].session_status, 1);
  report::Shown shown;
  report::show(events(0), shown);
  report::show(events(1), shown);
  EXPECT_THAT(shown.at("loss"), ElementsAre(std::pair{1, 1.F}, std::pair{2, 2.F}, std::pair{3, 3.F},
                                            std::pair{4, 4.F}, std::pair{5, 5.F}, std::pair{6, 6.F},
                                            std::pair{7, 7.F}));
  EXPECT_THAT(
      shown.at("loss vs samples"),
      ElementsAre(std::pair{8, 1.F}, std::pair{16, 2.F}, std::pair{24, 3.F}, std::pair{32, 4.F},
                  std::pair{40, 5.F}, std::pair{48, 6.F}, std::pair{56, 7.F}));
}

TEST_F(TensorBoardLogTest, IntervalKeepsEveryNthStepAndEvaluations) {
  config_.tensorboard.tensorboard_log_interval = 3;
  log_steps({}, 7);
  {
    TensorBoardLog log(config_, {.global_batch_size = 8, .steps_done = 7, .samples_done = 56});
    FinishedStep evaluated{.record = {.step = 8, .step_time_ms = 1, .eval_loss = 0.5},
                           .result = some_result()};
    log.after(evaluated);
  }
  ASSERT_EQ(files().size(), 2U);
  report::Shown shown;
  report::show(events(0), shown);
  report::show(events(1), shown);
  EXPECT_THAT(shown.at("loss"), ElementsAre(std::pair{3, 3.F}, std::pair{6, 6.F}));
  EXPECT_THAT(shown.at("loss vs samples"), ElementsAre(std::pair{24, 3.F}, std::pair{48, 6.F}));
  EXPECT_THAT(shown.at("eval-loss"), ElementsAre(std::pair{8, 0.5F}));
}

TEST_F(TensorBoardLogTest, ANewRunMovesAnOldOneAside) {
  log_steps({}, 2);
  EXPECT_EQ(moved_to_, "");
  log_steps({}, 3);
  EXPECT_EQ(moved_to_, dir_.file("board/old/run_1/rank_0"));
  EXPECT_EQ(files().size(), 1U);
}

TEST_F(TensorBoardLogTest, OtherRanksWriteWhatIsTheirs) {
  log_steps({.rank = 1, .ranks = 2}, 2);
  EXPECT_THAT(files(1), IsEmpty());
  {
    TensorBoardLog log(config_, {.rank = 1, .ranks = 2});
    log.scalars(1, {{"device_local_norm", 0.5}});
  }
  ASSERT_EQ(files(1).size(), 1U);
  const auto own = read_records(
      dir_.read("board/rank_1/" + std::filesystem::path(files(1)[0]).filename().string()));
  ASSERT_EQ(own.size(), 3U);  // no texts
  EXPECT_EQ(own[1].session_status, 1);
  EXPECT_EQ(own[2].values.at(0).tag, "device_local_norm");
}

TEST(TensorBoard, IsOffWithoutAFolder) {
  const AllConfig config = small_config({});
  EXPECT_EQ(make_tensorboard_log(config, {}), nullptr);
}

}  // namespace
}  // namespace tensorboard_log_test
}  // namespace tapestry

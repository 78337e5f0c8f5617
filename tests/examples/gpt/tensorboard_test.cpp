// TensorBoard's event files, written by the program itself.
#include <cmath>
#include <cstdint>

#include "autograd/io/json.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/parallel_core/tensorboard/event_reader.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using report::ReadEvent;
using report::Shown;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class TensorBoardTest : public ProgramTest {
 protected:
  void prepare() {
    prepare_text();
    dir_.write("run.yaml",
               replaced(replaced(kTinyRun, "training_iters: 3", "training_iters: 6"), "  seed: 7\n",
                        "  seed: 7\n  eval_interval: 2\n  save_interval: 2\n") +
                   "tensorboard:\n  tensorboard_dir: board\n"
                   "  log_loss_scale_to_tensorboard: True\n"
                   "  log_timers_to_tensorboard: True\n");
  }
  std::vector<std::string> files(const std::string& folder = "board/rank_0") const {
    return report::event_files_in(dir_.file(folder));
  }
  std::vector<ReadEvent> events(const std::string& file) const {
    return report::read_records(dir_.read(std::filesystem::relative(file, dir_.path()).string()));
  }
  Shown shown(const std::string& folder = "board/rank_0") const {
    Shown all;
    for (const std::string& file : files(folder)) {
      report::show(events(file), all);
    }
    return all;
  }
  // What TensorBoard shows is what metrics.jsonl says.
  void expect_the_metrics(int64_t batch) const {
    const Shown all = shown();
    Shown expected;
    for (const nlohmann::json& line : steps()) {
      const auto step = line.at("step").get<int64_t>();
      const double ms = line.at("step_time_ms").get<double>();
      const auto put = [&](const std::string& tag, double value, bool over_samples = true) {
        expected[tag].emplace_back(step, static_cast<float>(value));
        if (over_samples) {
          expected[tag + " vs samples"].emplace_back(step * batch, static_cast<float>(value));
        }
      };
      put("learning-rate", line.at("lr").at(0));
      put("batch-size", static_cast<double>(batch));
      put("loss", line.at("loss"));
      put("loss-scale", line.at("loss_scale"));
      put("grad-norm", line.at("grad_norm"));
      put("iteration-time", ms);
      put("throughput", static_cast<double>(batch) / (ms / 1000));
      put("B-samples-per-day", static_cast<double>(batch) / (ms / 1000) * 86400 / 1e9, false);
      if (line.contains("eval_loss")) {
        put("eval-loss", line.at("eval_loss"), false);
        put("eval-perplexity", line.at("eval_perplexity"), false);
      }
    }
    ASSERT_EQ(all.size(), expected.size() + 1);  // and the FLOPs
    for (const auto& [tag, points] : expected) {
      ASSERT_EQ(all.count(tag), 1U) << tag;
      ASSERT_EQ(all.at(tag).size(), points.size()) << tag;
      for (size_t i = 0; i < points.size(); ++i) {
        EXPECT_EQ(all.at(tag)[i].first, points[i].first) << tag;
        EXPECT_FLOAT_EQ(all.at(tag)[i].second, points[i].second) << tag;
      }
    }
    EXPECT_THAT(all.at("model-flops-throughput-per-npu"), SizeIs(6));
  }
};

TEST_F(TensorBoardTest, EventsAreTheMetricsAlsoOfARunThatGoesOn) {
  prepare();
  ASSERT_EQ(pretrain("--config_path run.yaml"), 0) << said();
  ASSERT_THAT(files(), SizeIs(1));
  expect_the_metrics(2);
  const std::vector<ReadEvent> all = events(files()[0]);
  EXPECT_EQ(all[0].version, "brain.Event:2");
  std::vector<std::string> texts;
  for (const ReadEvent& event : all) {
    for (const report::ReadValue& value : event.values) {
      if (value.tag == "optimizer_config/text_summary") {
        EXPECT_THAT(value.text, HasSubstr("| learning_rate | 0.001 | run.yaml:"));
        texts.push_back(value.tag);
      }
    }
  }
  EXPECT_THAT(texts, SizeIs(1));

  // Once more from step 2: in a new file, and no step twice. The killed run left a torn record.
  std::filesystem::remove_all(dir_.file("output/checkpoint/step_00000006"));
  std::filesystem::remove_all(dir_.file("output/checkpoint/step_00000004"));
  std::filesystem::resize_file(files()[0], std::filesystem::file_size(files()[0]) - 5);
  ASSERT_EQ(pretrain("--config_path run.yaml --set training_config.resume_training=True"), 0)
      << said();
  ASSERT_THAT(files(), SizeIs(2));
  expect_the_metrics(2);
  EXPECT_EQ(events(files()[1])[1].session_status, 1);

  // Another run moves them aside.
  ASSERT_EQ(pretrain("--config_path run.yaml --overwrite"), 0) << said();
  EXPECT_THAT(out_, Says("TensorBoard ... earlier run are now in ... board/old/run_1/rank_0"));
  EXPECT_THAT(files(), SizeIs(1));
  EXPECT_THAT(files("board/old/run_1/rank_0"), SizeIs(2));
  expect_the_metrics(2);
}

TEST_F(TensorBoardTest, ProtocReadsEveryEvent) {
  if (std::system("protoc --version > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "protoc is not installed (apt-get install protobuf-compiler)";
  }
  prepare();
  ASSERT_EQ(pretrain("--config_path run.yaml"), 0) << said();
  std::string text;
  for (const ReadEvent& event : events(files().at(0))) {
    dir_.write("event", event.payload);
    ASSERT_EQ(run("bash", "-c 'protoc --decode_raw < event'"), 0) << said();
    text += out_;
  }
  EXPECT_THAT(text, HasSubstr("3: \"brain.Event:2\"\n"));
  EXPECT_THAT(text, HasSubstr("5 {\n  1 {\n    1: \"learning-rate\"\n    2: 0x"));
  EXPECT_THAT(text, HasSubstr("1: \"loss vs samples\"\n"));
  EXPECT_THAT(text, HasSubstr("1: \"text\"\n"));
}

TEST_F(TensorBoardTest, WithoutAFolderTheOtherKeysHaveNoEffectAndSaySo) {
  prepare();
  ASSERT_EQ(pretrain("--config_path run.yaml --set tensorboard.tensorboard_dir=null"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("log_timers_to_tensorboard: has no effect without tensorboard_dir"));
  EXPECT_FALSE(std::filesystem::exists(dir_.file("board")));
}

TEST_F(TensorBoardTest, AFolderThatCannotBeMadeEndsTheRunWithItsName) {
  prepare();
  dir_.write("board", "a file");
  EXPECT_EQ(pretrain("--config_path run.yaml"), 2) << said();
  EXPECT_THAT(err_, HasSubstr("board"));
}

}  // namespace
}  // namespace tapestry

// What runs that go on draw from their data and leave in their folder.
#include <cstdio>
#include <filesystem>

#include "autograd/io/json.h"
#include "parallel_core/data/step_dataset.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

namespace tapestry::resume_data_test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::HasSubstr;

std::string set_training(const std::string& key, const std::string& value) {
  return " --set training_config." + key + "=" + value;
}
std::string set_data(const std::string& key, const std::string& value) {
  return " --set dataset_config." + key + "=" + value;
}
// A name, or True.
std::string resume(const std::string& from) { return set_training("resume_training", from); }

constexpr const char* kStep4 = "step_00000004";

class ResumeDataTest : public ProgramTest {
 protected:
  // Eight steps of 20 samples, in the sixth of which the second epoch begins.
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(prepare_text());
    std::string run = replaced(kTinyRun, "training_iters: 3",
                               "training_iters: 8\n  save_interval: 4\n  eval_interval: 4\n"
                               "  eval_iters: 1");
    run = replaced(run, "batch_size: 2", "batch_size: 10\n  micro_batch_num: 2");
    run = replaced(run, "split: 90,10,0", "split: 80,20,0");
    dir_.write("run.yaml", replaced(run, "num_layers: 1", "num_layers: 1\n  hidden_dropout: 0.1"));
  }
  int train(const std::string& arguments = "") {
    return pretrain("--config_path run.yaml" + arguments);
  }
  bool exists(const std::string& name) const { return fs::exists(dir_.file(name)); }
  std::string weights(const std::string& step) const {
    return dir_.read("output/checkpoint/" + step + "/model.safetensors");
  }
  Json data_state(const std::string& step) const {
    const std::string text = dir_.read("output/checkpoint/" + step + "/training_state.json");
    return Json::parse(text)["trainer"]["data"];
  }
  // The losses of steps [first, last].
  std::vector<double> losses(int64_t first, int64_t last) const {
    std::vector<double> found;
    for (const Json& line : steps()) {
      if (line["step"] >= first && line["step"] <= last) {
        found.push_back(line["loss"]);
      }
    }
    EXPECT_EQ(found.size(), static_cast<size_t>(last - first + 1));
    return found;
  }
};

TEST_F(ResumeDataTest, GoingBackGivesTheSameLinesAndWeights) {
  ASSERT_EQ(train(), 0) << said();
  ASSERT_EQ(steps().size(), 8U);
  EXPECT_EQ(steps()[0]["epoch"], 0);
  EXPECT_EQ(steps()[7]["epoch"], 1);  // the end of an epoch is among the repeated steps
  const std::string lines = metrics("output");
  const std::string whole = dir_.read("output/metrics.jsonl");
  const std::string expected = weights("step_00000008");
  dir_.write("output/grads_step_7.safetensors", "of a step after the checkpoint");

  ASSERT_EQ(train(resume(kStep4)), 0) << said();
  EXPECT_EQ(metrics("output"), lines);
  EXPECT_TRUE(weights("step_00000008") == expected);
  // The first lines are the very bytes of the first run; all of its other files are kept.
  const size_t kept = dir_.read("output/metrics.jsonl").find("{\"step\":5,");
  EXPECT_EQ(dir_.read("output/metrics.jsonl").substr(0, kept), whole.substr(0, kept));
  EXPECT_EQ(dir_.read("output/old/run_1/metrics.jsonl"), whole);
  EXPECT_TRUE(exists("output/old/run_1/config.yaml"));
  EXPECT_TRUE(exists("output/old/run_1/checkpoint/step_00000008/model.safetensors"));
  EXPECT_TRUE(exists("output/old/run_1/grads_step_7.safetensors"));
  EXPECT_FALSE(exists("output/grads_step_7.safetensors"));
  EXPECT_THAT(out_, HasSubstr("output/old/run_1"));
}

// What a killed process leaves: lines of steps after its last checkpoint, the last one torn.
TEST_F(ResumeDataTest, ATornLineAndLaterStepsAreDoneAgain) {
  ASSERT_EQ(train(), 0) << said();
  const std::string lines = metrics("output");
  fs::remove_all(dir_.file("output/checkpoint/step_00000008"));
  const std::string whole = dir_.read("output/metrics.jsonl");
  dir_.write("output/metrics.jsonl", whole.substr(0, whole.find("{\"step\":7,") + 30));
  ASSERT_EQ(train(resume("True")), 0) << said();
  EXPECT_EQ(metrics("output"), lines);
  EXPECT_FALSE(exists("output/old"));
}

TEST_F(ResumeDataTest, ItsLengthAndItsEvaluationsChangeNoSample) {
  ASSERT_EQ(train(), 0) << said();
  const std::vector<double> expected = losses(5, 8);
  const double evaluated = steps()[7]["eval_loss"];
  ASSERT_EQ(train(resume(kStep4) + set_training("training_iters", "20") +
                  set_training("eval_interval", "2")),
            0)
      << said();
  EXPECT_EQ(steps().size(), 20U);
  EXPECT_EQ(losses(5, 8), expected);
  EXPECT_EQ(steps()[7]["eval_loss"], evaluated);
  // The evaluation of a checkpoint reads what the run has validated on.
  char said_loss[80];
  std::snprintf(said_loss, sizeof(said_loss), "eval: Loss: %.6f,",
                steps()[19]["eval_loss"].get<double>());
  ASSERT_EQ(pretrain("--evaluate output/checkpoint/step_00000020"), 0) << said();
  EXPECT_THAT(out_, Says(said_loss));
  // Those twenty, once more from step 12 in a run that is planned to be shorter.
  const std::vector<double> longer = losses(13, 16);
  ASSERT_EQ(train(resume("step_00000012") + set_training("training_iters", "16")), 0) << said();
  EXPECT_EQ(steps().size(), 16U);
  EXPECT_EQ(losses(13, 16), longer);
}

// 4 steps of 20 samples, then 8 of 10: the same samples as 4 more of 20.
TEST_F(ResumeDataTest, AnotherBatchGoesOnAtTheNextSample) {
  ASSERT_EQ(train(), 0) << said();
  const Json before = data_state("step_00000008");
  EXPECT_EQ(before["position"], (Json{{"step", 8}, {"sample", 160}}));
  ASSERT_EQ(train(resume(kStep4) + set_training("training_iters", "12") +
                  set_data("micro_batch_num", "1")),
            0)
      << said();
  const Json after = data_state("step_00000012");
  EXPECT_EQ(after["position"], (Json{{"step", 12}, {"sample", 160}}));
  EXPECT_EQ(after["train"], before["train"]);  // the same plan
  EXPECT_EQ(steps()[11]["epoch"], 1);
}

TEST_F(ResumeDataTest, OtherDataAreRefusedAndBegunOnRequest) {
  ASSERT_EQ(train(set_training("training_iters", "4")), 0) << said();
  const auto before = tree();
  const std::string longer = resume("True") + set_training("training_iters", "8");
  ASSERT_EQ(train(longer + set_data("split", "70,30,0")), 2) << said();
  for (const char* named : {"dataset_config.split is 70,30,0; it was 80,20,0", kStep4,
                            "training_config.new_dataset: ... True"}) {
    EXPECT_THAT(err_, Says(named));
  }
  dir_.write("other.txt", sample_text(90));
  ASSERT_EQ(preprocess("--input other.txt --output_prefix other --tokenizer_type byte"), 0);
  const std::string other = longer + set_data("data_path", "other_text_document");
  for (const char* dry_run : {" --dry_run", ""}) {
    ASSERT_EQ(train(other + dry_run), 2) << said();
    EXPECT_THAT(err_, HasSubstr("a data set is other_text_document"));
    EXPECT_THAT(err_, HasSubstr("it was text_text_document"));
  }
  fs::remove(dir_.file("other.txt"));
  for (const char* file : {"other_text_document.idx", "other_text_document.bin"}) {
    ASSERT_TRUE(exists(file));
  }
  auto now = tree();
  std::erase_if(now, [](const auto& entry) { return entry.first.starts_with("other"); });
  EXPECT_EQ(now, before);

  // The new data from their beginning; steps go on. Then on in these, without the key.
  ASSERT_EQ(train(other + set_training("new_dataset", "True")), 0) << said();
  EXPECT_THAT(out_, HasSubstr("first sample of these data, after 4 steps"));
  EXPECT_EQ(steps().size(), 8U);
  const Json begun = data_state("step_00000008");
  EXPECT_EQ(begun["begun"], (Json{{"step", 4}, {"sample", 80}}));
  EXPECT_EQ(begun["position"], (Json{{"step", 4}, {"sample", 80}}));
  ASSERT_EQ(train(other + set_training("training_iters", "10")), 0) << said();
  EXPECT_EQ(data_state("step_00000010")["position"], (Json{{"step", 6}, {"sample", 120}}));
  EXPECT_EQ(steps().size(), 10U);
}

TEST_F(ResumeDataTest, RecordedStepsGoOnAtTheNextOne) {
  for (int64_t step = 1; step <= 8; ++step) {
    data::StepRows rows{.rows = 2, .seq = 16, .tokens = {}, .labels = {}, .loss_mask = {}};
    for (int64_t i = 0; i < 32; ++i) {
      rows.tokens.push_back((step * step + 3 * i) % 250);
      rows.labels.push_back((step * step + 3 * i + 3) % 250);
      rows.loss_mask.push_back(1);
    }
    data::write_step(dir_.file("recorded"), step, 0, rows);
  }
  dir_.write("run.yaml", replaced(replaced(kTinyRun, "  data_path: text_text_document\n",
                                           "  step_data_dir: recorded\n"),
                                  "  split: 90,10,0\n", ""));
  const std::string eight =
      set_training("training_iters", "8") + set_training("save_interval", "4");
  ASSERT_EQ(train(eight), 0) << said();
  const std::string lines = metrics("output");
  const std::string expected = weights("step_00000008");
  ASSERT_EQ(train(eight + resume(kStep4)), 0) << said();
  EXPECT_EQ(metrics("output"), lines);
  EXPECT_TRUE(weights("step_00000008") == expected);
}

}  // namespace
}  // namespace tapestry::resume_data_test

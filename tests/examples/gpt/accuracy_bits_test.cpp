// Runs in exact mode: accuracy compare --bits, and pretrain_gpt --prove.
#include "tests/examples/gpt/run_program.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;

class AccuracyBits : public ProgramTest {
 protected:
  void SetUp() override {
    prepare_text();
    dir_.write("run.yaml", replaced(kTinyRun, "  seq_length: 16\n",
                                    "  seq_length: 16\n  position_embedding_type: rope\n"));
  }
  void train(const std::string& name, const std::string& more = "") {
    ASSERT_EQ(pretrain("--config_path run.yaml --set training_config.exact=True "
                       "--set training_config.save_interval=1 --set training_config.output_dir=" +
                       name + " " + more),
              0)
        << said();
  }
};

TEST_F(AccuracyBits, TwoRunsAreComparedAndAStepIsProved) {
  train("one");
  train("other", "--set dataset_config.batch_size=1 --set dataset_config.micro_batch_num=2");
  EXPECT_EQ(run(TAPESTRY_ACCURACY, "compare --bits one other"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("All 3 common steps"));

  const std::string checkpoint = "one/checkpoint/step_00000001";
  EXPECT_EQ(pretrain("--prove " + checkpoint + " 3 --json proof.json"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("The recorded hash returns"));
  EXPECT_EQ(nlohmann::json::parse(dir_.read("proof.json"))["verdict"], "proved");
  EXPECT_EQ(pretrain("--config_path other/config.yaml --prove " + checkpoint + " 9"), 2) << said();
  EXPECT_THAT(err_, HasSubstr("no hash of step 9"));
  EXPECT_EQ(pretrain("--prove " + checkpoint), 2) << said();
}

TEST_F(AccuracyBits, ARecordedHashThatDoesNotReturnNamesItsRun) {
  train("one");
  train("other");
  std::string metrics = dir_.read("other/metrics.jsonl");
  const size_t at = metrics.find("\"hash\":\"", metrics.rfind("\"step\":3"));
  ASSERT_NE(at, std::string::npos);
  char& digit = metrics[metrics.find('"', at + 8) - 1];
  digit = digit == '0' ? '1' : '0';
  dir_.write("other/metrics.jsonl", metrics);
  EXPECT_EQ(run(TAPESTRY_ACCURACY, "compare --bits one other --json bits.json"), 1) << said();
  const nlohmann::json report = nlohmann::json::parse(dir_.read("bits.json"));
  EXPECT_EQ(report["stage"], "recorded");
  EXPECT_EQ(report["first"]["step"], 3);
  EXPECT_THAT(out_, HasSubstr("The recorded hash of other does not return"));

  train("faster", "--set optimizer_config.learning_rate=2e-3");
  EXPECT_EQ(run(TAPESTRY_ACCURACY, "compare --bits one faster --json bits.json"), 1) << said();
  const nlohmann::json optimizer = nlohmann::json::parse(dir_.read("bits.json"));
  EXPECT_EQ(optimizer["findings"][0]["name"], "optimizer_config.learning_rate");
  EXPECT_EQ(optimizer["first"]["step"], 1);
}

TEST_F(AccuracyBits, RunsWithoutHashesAreRefused) {
  train("one");
  train("plain", "--set training_config.exact=False");
  EXPECT_EQ(run(TAPESTRY_ACCURACY, "compare --bits one plain"), 2) << said();
  EXPECT_THAT(out_, HasSubstr("training_config.exact"));
  EXPECT_EQ(run(TAPESTRY_ACCURACY, "compare --bits one"), 2);
}

}  // namespace
}  // namespace tapestry

// Bad steps of the real program: what it says, how it ends, and what its capsules replay.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

namespace tapestry::bad_steps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class BadSteps : public ProgramTest {
 protected:
  void SetUp() override {
    prepare_text();
    dir_.write("run.yaml", kTinyRun);
  }
  int train(const std::string& more) {
    return pretrain("--config_path run.yaml --set training_config.output_dir=output " + more);
  }
  nlohmann::json report(int step) const {
    return nlohmann::json::parse(dir_.read(concat("output/capsule/step_", step, "/report.json")));
  }
};

// Weights that the first update throws off.
constexpr const char* kTooFast =
    "--set optimizer_config.learning_rate=1e30 --set model_config.hidden_act=relu ";

TEST_F(BadSteps, StopEndsTheRunAndTheCapsuleReplays) {
  EXPECT_EQ(train(concat(kTooFast, "--set training_config.on_anomaly=stop")), 1) << said();
  EXPECT_THAT(err_, AllOf(HasSubstr("step 2: "), HasSubstr("op "), HasSubstr(" of language_model."),
                          HasSubstr("It is kept in output/capsule/step_2.")));
  const nlohmann::json found = report(2);
  EXPECT_EQ(found.at("verdict"), "deterministic");
  EXPECT_EQ(found.at("anomaly").get<std::string>().substr(0, 9), "nonfinite");
  EXPECT_EQ(found.at("first").at("rank"), 0);
  EXPECT_FALSE(found.at("first").at("module").is_null());
  EXPECT_THAT(found.at("fault").at("dataset").get<std::string>(), HasSubstr("text_text_document"));
  EXPECT_FALSE(found.at("fault").at("documents").empty());
  EXPECT_FALSE(found.at("fault").at("text").get<std::string>().empty());

  std::filesystem::create_directories(dir_.file("elsewhere"));
  std::filesystem::rename(dir_.file("output/capsule/step_2"), dir_.file("elsewhere/bad"));
  std::filesystem::remove_all(dir_.file("output"));
  std::filesystem::remove(dir_.file("run.yaml"));
  EXPECT_EQ(pretrain("--replay elsewhere/bad"), 0) << said();
  EXPECT_THAT(out_, Says("recorded bits return."));
  EXPECT_FALSE(std::filesystem::exists(dir_.file("output")));
  // Others are not those of this step.
  const std::string record = dir_.read("elsewhere/bad/capsule.json");
  dir_.write("elsewhere/bad/capsule.json",
             std::regex_replace(record, std::regex("\"loss_bits\": \"[^\"]*\""),
                                "\"loss_bits\": \"3ff0000000000000\""));
  EXPECT_EQ(pretrain("--replay elsewhere/bad"), 1) << said();
  EXPECT_EQ(pretrain("--replay elsewhere"), 2) << said();
  EXPECT_THAT(err_, HasSubstr("elsewhere/capsule.json: cannot be read"));
  EXPECT_EQ(pretrain("--replay elsewhere/bad --overwrite"), 2) << said();
}

TEST_F(BadSteps, SkippedOnesAreCountedAndTheRunGoesOn) {
  // All but no loss is a spike.
  ASSERT_EQ(train("--set training_config.on_anomaly=skip --set optimizer_config.learning_rate=3.0 "
                  "--set training_config.loss_spike_threshold=1.01 "
                  "--set training_config.loss_spike_window=1 "
                  "--set training_config.training_iters=4"),
            1)
      << said();
  EXPECT_THAT(out_ + err_, AllOf(HasSubstr("is a spike"), HasSubstr("The update is left out."),
                                 Says("worse than it began")));
  EXPECT_TRUE(steps().at(1).value("skipped", false));
  EXPECT_EQ(report(2).at("anomaly"), "loss_spike");
  EXPECT_EQ(pretrain("--replay output/capsule/step_2"), 0) << said();
}

TEST_F(BadSteps, WithoutAnAutopsyNothingIsKept) {
  EXPECT_EQ(train(concat(kTooFast, "--set training_config.autopsy=False")), 1) << said();
  EXPECT_THAT(out_ + err_, Not(HasSubstr("autopsy:")));
  EXPECT_FALSE(std::filesystem::exists(dir_.file("output/capsule")));
}

}  // namespace
}  // namespace tapestry::bad_steps

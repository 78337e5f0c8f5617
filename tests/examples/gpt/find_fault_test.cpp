// pretrain_gpt --find_fault: a training against a stored one, and against the folder of a run.
#include "tests/examples/gpt/run_program.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kCase = std::string(TAPESTRY_SOURCE_DIR) + "/tests/data/golden_models/llama_tiny";

class FindFaultProgram : public ProgramTest {
 protected:
  void SetUp() override {
    ASSERT_EQ(
        run(TAPESTRY_GOLDEN_TO_YAML, "--case '" + kCase + "' --output_dir run --output o.yaml"), 0)
        << said();
  }
  int find_fault(const std::string& more, const std::string& reference = kCase) {
    return pretrain("--config_path o.yaml --find_fault '" + reference + "' " + more);
  }
  nlohmann::json verdict() const { return nlohmann::json::parse(dir_.read("fault.json")); }
};

TEST_F(FindFaultProgram, FindsNothingWhereNothingIsWrong) {
  EXPECT_EQ(find_fault("--expand 'tp=2;pp=2' --json fault.json --html fault.html"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("find_fault: agree, at stage none"));
  const nlohmann::json report = verdict();
  std::vector<std::string> keys;
  for (const auto& [key, value] : report.items()) {
    keys.push_back(key);
  }
  EXPECT_THAT(keys,
              ::testing::UnorderedElementsAre("command", "verdict", "stage", "first", "findings"));
  EXPECT_EQ(report["command"], "find_fault");
  EXPECT_EQ(report["verdict"], "agree");
  EXPECT_EQ(report["stage"], "none");
  EXPECT_TRUE(report["first"].is_null());
  std::vector<std::string> stages;
  for (const nlohmann::json& row : report["findings"]) {
    EXPECT_EQ(row["status"], "agrees") << row;
    for (const char* key : {"compared", "worst", "bound", "detail"}) {
      EXPECT_TRUE(row.contains(key)) << row;
    }
    stages.push_back(row["stage"]);
  }
  EXPECT_THAT(stages, ElementsAre("config", "weights", "data", "forward", "loss", "backward",
                                  "reduction", "schedule", "optimizer", "optimizer", "determinism",
                                  "layout tp=2", "layout pp=2", "long_run"));
  EXPECT_THAT(dir_.read("fault.html"), HasSubstr("</html>"));
  EXPECT_FALSE(std::filesystem::exists(dir_.file("run")));  // it trains nothing that stays
}

TEST_F(FindFaultProgram, EndsAtTheConfiguration) {
  EXPECT_EQ(find_fault("--set optimizer_config.eps=1e-6 --json fault.json"), 1) << said();
  const nlohmann::json report = verdict();
  EXPECT_EQ(report["verdict"], "differ");
  EXPECT_EQ(report["stage"], "config");
  EXPECT_EQ(report["findings"].size(), 1);
  std::vector<std::string> keys;
  for (const auto& [key, value] : report["first"].items()) {
    keys.push_back(key);
  }
  EXPECT_THAT(keys, ::testing::UnorderedElementsAre("step", "micro_batch", "sample", "rank", "pass",
                                                    "module", "op", "tensor", "source", "distance",
                                                    "bound"));
  EXPECT_EQ(report["first"]["tensor"], "optimizer_config.eps");
}

TEST_F(FindFaultProgram, EndsAtTheWeights) {
  EXPECT_EQ(find_fault("--set training_config.load_checkpoint= --json fault.json"), 1) << said();
  EXPECT_EQ(verdict()["stage"], "weights");
  EXPECT_THAT(out_, HasSubstr("Start weights differ, first in "));
}

TEST_F(FindFaultProgram, EndsAtTheData) {
  std::filesystem::copy(kCase + "/data", dir_.file("data"),
                        std::filesystem::copy_options::recursive);
  std::filesystem::copy_file(kCase + "/data/step_3/rank_0/loss_mask.npy",
                             dir_.file("data/step_2/rank_0/loss_mask.npy"),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(find_fault("--set dataset_config.step_data_dir=data --json fault.json"), 1) << said();
  const nlohmann::json report = verdict();
  EXPECT_EQ(report["stage"], "data");
  EXPECT_EQ(report["first"]["step"], 2);
  EXPECT_EQ(report["first"]["tensor"], "loss_mask");
}

TEST_F(FindFaultProgram, TakesTheFolderOfARun) {
  ASSERT_EQ(pretrain("--config_path o.yaml"), 0) << said();
  EXPECT_EQ(find_fault("", "run"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("stage none"));
}

TEST_F(FindFaultProgram, RefusesWhatCannotBeCompared) {
  const auto refused = [&](const std::string& more, const std::string& reference,
                           const std::string& expected) {
    EXPECT_EQ(find_fault(more, reference), 2) << said();
    EXPECT_THAT(err_, HasSubstr(expected));
  };
  refused("", "nowhere", "nowhere: expected a replay case");
  refused("--fault_steps 0", kCase, "--fault_steps 0: expected at least one step");
  refused("--expand tp=3", kCase, "3");
  refused("--json fault.txt", kCase, "--json");
}

}  // namespace
}  // namespace tapestry

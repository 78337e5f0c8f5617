// pretrain_gpt --find_fault: a training against a stored one, and against the folder of a run.
#include <fstream>
#include <iterator>

#include "autograd/io/input_file.h"
#include "autograd/io/tensor_io.h"
#include "diagnosis/accuracy/replay_case.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kCase = std::string(TAPESTRY_SOURCE_DIR) + "/tests/data/golden_models/llama_tiny";

class FindFaultProgram : public ProgramTest {
 protected:
  void SetUp() override {
    dir_.write("o.yaml", replay_case_yaml(read_file(kCase + "/config.json"), kCase, "run"));
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
    // Weights of the first three steps are not stored.
    const bool stored = !(row["stage"] == "optimizer" && row["compared"] == 0);
    EXPECT_EQ(row["status"], stored ? "agrees" : "not_compared") << row;
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
  EXPECT_THAT(out_, Says("weights differ, first in"));
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

// What decays by the names of the configuration, and not by flags, is as it should be.
TEST_F(FindFaultProgram, DecayByNameIsNoFault) {
  const std::string names =
      " --set optimizer_config.lr_warmup_iters=0 --set optimizer_config.weight_decay=0.5 --set "
      "'optimizer_config.weight_decay_exclude=[linear_fc2, layers.1]'";
  ASSERT_EQ(pretrain("--config_path o.yaml" + names), 0) << said();
  EXPECT_EQ(find_fault(names + " --json fault.json", "run"), 0) << said();
  EXPECT_EQ(verdict()["verdict"], "agree");
}

TEST_F(FindFaultProgram, RefusesWhatCannotBeCompared) {
  const auto refused = [&](const std::string& more, const std::string& reference,
                           const std::string& expected) {
    EXPECT_EQ(find_fault(more, reference), 2) << said();
    EXPECT_THAT(err_, Says(expected));
  };
  refused("", "nowhere", "nowhere: expected a replay case");
  refused("--fault_steps 0", kCase, "--fault_steps 0: ... least one step");
  refused("--expand tp=3", kCase, "3");
  refused("--set training_config.rampup_batch_size=[2,2,8]", kCase,
          "rampup_batch_size: steps are compared that all have the global batch");
  refused("--json fault.txt", kCase, "--json");
}

/// Cases as tools/torch_dump.py writes them, held against what repeats them here.
class FindFaultInTorchDump : public ProgramTest {
 protected:
  static std::string stored(const std::string& name) {
    return std::string(TAPESTRY_SOURCE_DIR) + "/tests/data/torch_dump/" + name;
  }
  void write_run(const std::string& name) {
    std::string run = read_file(stored("llama/run.yaml"));
    run = replaced(run, "training_iters: 1", "training_iters: 3");
    run = replaced(run, "micro_batch_num: 1", "micro_batch_num: 2");
    run = replaced(run, "clip_grad: 1.0e+9",
                   "clip_grad: 1.0\n  lr_decay_style: constant\n  lr_warmup_iters: 1\n"
                   "  lr_warmup_init: 5.0e-3");
    for (const std::string file : {"/init.safetensors", "/data"}) {
      run = replaced(run, "tests/data/torch_dump/llama/case" + file,
                     stored("three_steps/" + name) + file);
    }
    dir_.write("run.yaml", run);
  }
  static std::string read_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  int find_fault(const std::string& reference, const std::string& more = "") {
    return pretrain("--config_path run.yaml --find_fault '" + reference + "' --json fault.json " +
                    more);
  }
  nlohmann::json verdict() const { return nlohmann::json::parse(dir_.read("fault.json")); }
  nlohmann::json row(const std::string& stage) const {
    const nlohmann::json report = verdict();
    for (const nlohmann::json& each : report["findings"]) {
      if (each["stage"] == stage) {
        return each;
      }
    }
    return {};
  }
};

TEST_F(FindFaultInTorchDump, TheNamesOfHuggingFaceAreUnderstood) {
  write_run("clean");
  EXPECT_EQ(find_fault(stored("three_steps/clean")), 0) << said();
  EXPECT_EQ(verdict()["stage"], "none");
  EXPECT_EQ(row("config")["status"], "not_compared");
  EXPECT_EQ(row("backward")["compared"], 3 * 12);  // all parameters of all steps
  EXPECT_EQ(row("optimizer")["compared"], 3 * 12);
  EXPECT_THAT(out_, Says("Configurations were not compared"));
}

TEST_F(FindFaultInTorchDump, NamesOfAProgramsOwnThroughAMap) {
  // The weights under other names, as a program of its own kind has them.
  std::filesystem::copy(stored("three_steps/clean"), dir_.file("case"),
                        std::filesystem::copy_options::recursive);
  for (const char* file : {"init", "grads_step_1", "grads_step_2", "grads_step_3", "weights_step_1",
                           "weights_step_2", "weights_step_3"}) {
    const std::string path = dir_.file(std::string("case/") + file + ".safetensors");
    NamedTensorMap renamed;
    for (const auto& [name, tensor] : load_safetensors(path)) {
      renamed.emplace("net." + name, tensor);
    }
    save_safetensors(path, renamed);
  }
  write_run("clean");
  dir_.write("map.yaml", "'net\\.(.*)': '$1'\n");
  EXPECT_EQ(find_fault("case", "--inject_weights case --inject_data case/data --map map.yaml"), 0)
      << said();
  EXPECT_EQ(row("backward")["compared"], 3 * 12);
  EXPECT_NE(find_fault("case"), 0);
}

TEST_F(FindFaultInTorchDump, AConfigurationThatCannotBeReadIsNotCompared) {
  std::filesystem::copy(stored("three_steps/clean"), dir_.file("case"),
                        std::filesystem::copy_options::recursive);
  dir_.write("case/config.json", R"({"model_type": "mamba2", "hidden_size": 8})");
  write_run("clean");
  EXPECT_EQ(find_fault("case"), 0) << said();
  EXPECT_EQ(row("config")["status"], "not_compared");
  EXPECT_THAT(row("config")["detail"], HasSubstr("mamba2"));
}

TEST_F(FindFaultInTorchDump, AnOptimizerThatDecaysAllIsNamedWithoutItsWeights) {
  write_run("decays_all");
  EXPECT_EQ(find_fault(stored("three_steps/decays_all")), 1) << said();
  const nlohmann::json report = verdict();
  EXPECT_EQ(report["stage"], "optimizer");
  EXPECT_EQ(report["first"]["step"], 1);
  EXPECT_EQ(report["first"]["op"], "AdamW");
  EXPECT_THAT(out_, Says("if every tensor decayed"));
}

// Runs of ours whose files say that they had other settings than they had.
struct HiddenSetting {
  std::string name, had, says, stage, explanation;
};
void PrintTo(const HiddenSetting& hidden, std::ostream* out) { *out << hidden.name; }

class HiddenSettings : public FindFaultProgram,
                       public ::testing::WithParamInterface<HiddenSetting> {};

TEST_P(HiddenSettings, AreFoundByWhatTheyDo) {
  const HiddenSetting& hidden = GetParam();
  // The stored schedule begins with a rate of 0, after which nothing has moved.
  const std::string schedule = " --set optimizer_config.lr_warmup_iters=0";
  ASSERT_EQ(pretrain("--config_path o.yaml" + schedule + " --set " + hidden.had), 0) << said();
  ASSERT_EQ(pretrain("--config_path o.yaml" + schedule + " --set " + hidden.says +
                     " --set training_config.output_dir=other"),
            0)
      << said();
  // All but the numbers is that of the run as it says it was.
  std::filesystem::copy_file(dir_.file("other/config.yaml"), dir_.file("run/config.yaml"),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(pretrain("--config_path o.yaml" + schedule + " --set " + hidden.says +
                     " --find_fault run --json fault.json"),
            1)
      << said();
  EXPECT_EQ(verdict()["stage"], hidden.stage) << said();
  EXPECT_THAT(out_, Says(hidden.explanation));
}

INSTANTIATE_TEST_SUITE_P(
    Rules,
    HiddenSettings,
    ::testing::Values(
        HiddenSetting{"Beta2", "optimizer_config.betas=[0.9,0.999]",
                      "optimizer_config.betas=[0.9,0.95]", "optimizer", "as if beta2 were 0.999"},
        HiddenSetting{"ClipOff", "optimizer_config.clip_grad=0", "optimizer_config.clip_grad=1.0",
                      "clip", "as if clipping were off"},
        HiddenSetting{"NoDecay", "optimizer_config.weight_decay=0.0",
                      "optimizer_config.weight_decay=0.1", "optimizer", "as if no tensor decayed"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tapestry

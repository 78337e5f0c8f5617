// accuracy compare: dumps of pretrain_gpt against those that tools/torch_dump.py has made of
// PyTorch models with the same weights and batches.
#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class AccuracyCompare : public ProgramTest {
 protected:
  /// Repeats the step of a stored dump, with its movements measured, in the folder `name`.
  void dump(const std::string& model, const std::string& name, const std::string& options = "") {
    const std::string stored = stored_case(model);
    dir_.write(name + ".json", "{\"common_dump_settings\": {\"path\": \"" + dir_.file(name) +
                                   "\", \"saved_data\": \"full\"}}");
    ASSERT_EQ(
        pretrain("--config_path " + stored + "/run.yaml --set training_config.output_dir=out_" +
                 name + " --set training_config.load_checkpoint=" + stored +
                 "/case/init.safetensors --set dataset_config.step_data_dir=" + stored +
                 "/case/data --dump " + name + ".json --measure_rounding 3 " + options),
        0)
        << said();
  }
  int compare(const std::string& ours, const std::string& other) {
    return run(TAPESTRY_ACCURACY, "compare " + ours + " " + other + " --json out.json");
  }
  nlohmann::json json() const { return nlohmann::json::parse(dir_.read("out.json")); }
  static std::string stored_case(const std::string& model) {
    return std::string(TAPESTRY_SOURCE_DIR) + "/tests/data/torch_dump/" + model;
  }
  static std::string stored_dump(const std::string& model) { return stored_case(model) + "/dump"; }
};

TEST_F(AccuracyCompare, PyTorchsLlamaAgrees) {
  dump("llama", "ours");
  EXPECT_EQ(compare("ours", stored_dump("llama")), 0) << said();
  const nlohmann::json report = json();
  EXPECT_EQ(report["command"], "compare");
  EXPECT_EQ(report["verdict"], "agree");
  EXPECT_TRUE(report["first"].is_null());
  EXPECT_GE(report["findings"].size(), 35U);
}

TEST_F(AccuracyCompare, AnOtherEpsilonOfTheNormIsFoundThere) {
  dump("llama", "ours", "--set model_config.norm_epsilon=1e-3");
  EXPECT_EQ(compare("ours", stored_dump("llama")), 1) << said();
  const nlohmann::json first = json()["first"];
  EXPECT_EQ(first["tensor"], "layers.0.attention_norm");
  EXPECT_EQ(first["op"], "model.layers.0.input_layernorm");
  EXPECT_EQ(first["pass"], "forward");
  EXPECT_EQ(first["step"], 1);
  EXPECT_GT(first["distance"], first["bound"]);
}

TEST_F(AccuracyCompare, AnOtherDecayIsFoundInTheUpdates) {
  dump("llama", "ours", "--set optimizer_config.weight_decay=0.2");
  EXPECT_EQ(compare("ours", stored_dump("llama")), 1) << said();
  EXPECT_EQ(json()["first"]["pass"], "optimizer");
}

TEST_F(AccuracyCompare, PyTorchsGpt2WithFusedAndTransposedMatrices) {
  dump("gpt2", "ours");
  EXPECT_EQ(compare("ours", stored_dump("gpt2")), 0) << said();
  EXPECT_GE(json()["findings"].size(), 35U);
  dump("gpt2", "wrong", "--set model_config.hidden_act=gelu");  // exact; theirs goes through tanh
  EXPECT_EQ(compare("wrong", stored_dump("gpt2")), 1) << said();
  EXPECT_EQ(json()["first"]["tensor"], "layers.0.mlp");
}

TEST_F(AccuracyCompare, WhatItRefuses) {
  EXPECT_EQ(compare("nothing", stored_dump("llama")), 2);
  EXPECT_THAT(err_, HasSubstr("nothing: is no folder of a dump"));
  EXPECT_EQ(compare(stored_dump("llama"), stored_dump("llama")), 2);  // nobody has measured
  EXPECT_THAT(out_, AllOf(HasSubstr("compare: not_comparable"), HasSubstr("--measure_rounding")));
  const auto refused = [&](const std::string& options, const std::string& expected) {
    EXPECT_EQ(compare("a", "b " + options), 2);
    EXPECT_THAT(err_, Says(expected));
  };
  refused("c", "two dumps are needed: 3 given");
  refused("--multiple 0.5", "--multiple ... 0.5; ... expected a number from ... 1");
  refused("--rows 0", "--rows is 0");
  refused("--map nothing.yaml", "nothing.yaml");
}

}  // namespace
}  // namespace tapestry

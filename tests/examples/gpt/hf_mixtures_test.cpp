// Folders of Hugging Face's mixtures of experts, and mixtures that start from a dense folder.
#include <gmock/gmock.h>

#include <filesystem>
#include <string>

#include "tests/examples/gpt/hf_folders.h"
#include "tests/says.h"

namespace tapestry::hf_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class HfMixturesTest : public HfTest {
 protected:
  // kNothing, of mixtures that are made of a dense folder.
  void write_upcycling(const std::string& folder, const std::string& more = "") {
    dir_.write("upcycle.yaml", std::string(kNothing) +
                                   "moe_config:\n  num_experts: 4\n"
                                   "  moe_shared_expert_intermediate_size: 8\n"
                                   "  upcycle_from: " +
                                   folder + "\n" + more);
  }
  void expect_refused(const std::string& arguments, const std::string& text) {
    EXPECT_EQ(pretrain("--config_path upcycle.yaml " + arguments), 2);
    EXPECT_THAT(out_ + err_, Says(text)) << said();
  }
};

TEST_F(HfMixturesTest, LoadedAndWrittenBackBitForBit) {
  write_mixtral("mixtral");
  write_qwen2_moe("qwen2_moe");
  dir_.write("run.yaml", kNothing);
  for (const std::string name : {"mixtral", "qwen2_moe"}) {
    expect_same_after_a_run(name);
  }
}

TEST_F(HfMixturesTest, TextFromAFolder) {
  write_mixtral("mixtral");
  const std::string ask = " --prompt 'And the king' --max_new_tokens 8 --temperature 0";
  ASSERT_EQ(generate("--checkpoint mixtral" + ask), 0) << said();
  EXPECT_THAT(out_, HasSubstr("And the king"));
  const std::string text = out_;
  dir_.write("run.yaml", kNothing);
  ASSERT_EQ(pretrain("--config_path run.yaml --from_hf mixtral"), 0) << said();
  ASSERT_EQ(generate("--checkpoint output/checkpoint/step_00000001" + ask), 0) << said();
  EXPECT_EQ(out_, text);
}

// The run's first loss is the dense model's, and what it saves is a mixture made of it.
TEST_F(HfMixturesTest, AMixtureStartsAsTheDenseModel) {
  write_llama("dense", "llama");
  dir_.write("run.yaml", kNothing);
  ASSERT_EQ(pretrain("--config_path run.yaml --from_hf dense "
                     "--set training_config.output_dir=dense_run"),
            0)
      << said();
  const std::string mixture_run = "--config_path upcycle.yaml --from_hf dense ";
  // Of the folder, and of a checkpoint of a run of our own.
  for (const std::string from : {"dense", "dense_run"}) {
    write_upcycling(from);
    ASSERT_EQ(pretrain(mixture_run + "--dry_run"), 0) << said();
    EXPECT_THAT(out_, AllOf(HasSubstr("weights: "), Says("MLPs ... become experts")));
    ASSERT_EQ(pretrain(mixture_run + "--overwrite"), 0) << said();
    EXPECT_THAT(out_, Says("MLPs ... this dense model"));
    const double dense = steps("dense_run").front().at("loss").get<double>();
    EXPECT_NEAR(steps("output").front().at("loss").get<double>(), dense, 1e-5 * dense);
  }
  const std::string saved = "output/checkpoint/step_00000001";
  EXPECT_EQ(json(saved + "/config.json").at("model_type"), "tapestry");  // and not the folder's
  EXPECT_EQ(json(saved + "/generation_config.json").at("eos_token_id"), 256);
  const testing::State mixture = tensors(saved);
  const testing::State dense = tensors("dense");
  for (const char* layer : {"0", "1"}) {
    const std::string theirs = std::string("model.layers.") + layer + ".mlp.";
    const std::string ours = std::string("layers.") + layer + ".moe.";
    for (const char* expert : {"0", "1", "2", "3"}) {
      const std::string name = ours + "experts." + expert;
      EXPECT_TRUE(testing::same_bits(mixture.at(name + ".w_gate.weight"),
                                     dense.at(theirs + "gate_proj.weight")));
      EXPECT_TRUE(testing::same_bits(mixture.at(name + ".w_up.weight"),
                                     dense.at(theirs + "up_proj.weight")));
      EXPECT_TRUE(testing::same_bits(mixture.at(name + ".w_down.weight"),
                                     dense.at(theirs + "down_proj.weight")));
    }
    EXPECT_GT(testing::largest(mixture.at(ours + "router.weight")), 0);
    EXPECT_GT(testing::largest(mixture.at(ours + "shared_expert.w_up.weight")), 0);
    EXPECT_LT(testing::largest(mixture.at(ours + "shared_expert.w_down.weight")), 1e-29);
  }
  // It goes on with its own weights, and stays what it is without the dense folder.
  std::filesystem::remove_all(dir_.file("dense"));
  ASSERT_EQ(pretrain("--config_path output/config.yaml --set training_config.training_iters=2 "
                     "--set training_config.resume_training=True"),
            0)
      << said();
  EXPECT_THAT(out_, AllOf(HasSubstr("loaded ./output/checkpoint/step_00000001"),
                          Not(HasSubstr("copies of the MLPs"))));
  ASSERT_EQ(generate("--checkpoint " + saved + " --prompt And --max_new_tokens 2"), 0) << said();
}

TEST_F(HfMixturesTest, WhatNoMixtureCanBeMadeOf) {
  write_llama("dense", "llama");
  write_mixtral("mixtral");
  const std::string made = "--from_hf dense ";
  for (const char* dry : {"", "--dry_run"}) {
    write_upcycling("mixtral");
    expect_refused(made + dry, "mixtral: moe_config.upcycle_from ... mixture of experts already");
    write_upcycling("dense");
    const std::string own =
        "--set model_config.vocab_size=264 --set model_config.num_layers=3 "
        "--set model_config.hidden_size=16 --set model_config.ffn_hidden_size=32 "
        "--set model_config.num_attention_heads=4 ";
    expect_refused(own + dry,
                   "model_config.ffn_hidden_size is 32, but intermediate_size of "
                   "dense/config.json is 24");
    EXPECT_THAT(out_ + err_, HasSubstr("model_config.num_layers is 3, but num_hidden_layers of "
                                       "dense/config.json is 2"));
    write_upcycling("none");
    expect_refused(made + dry, "none");
  }
  EXPECT_FALSE(std::filesystem::exists(dir_.file("output/metrics.jsonl")));
  write_upcycling("dense", "  moe_ffn_hidden_size: 12\n");
  expect_refused(made,
                 "upcycle.yaml:17:24: moe_config.moe_ffn_hidden_size: ... 12, ... upcycle_from ... "
                 "MLP ... ffn_hidden_size 24; ... leave this key out");
  write_upcycling("dense");
  expect_refused(made + "--set moe_config.num_experts=1",
                 "num_experts ... 1; ... dense model as it is");
  // A file by itself has no config.json to be held against.
  write_upcycling("dense/model.safetensors");
  testing::State state = tensors("dense");
  state["model.layers.1.mlp.up_proj.weight"] = zeros({kInner + 8, kWidth});
  write_state(dir_.file("dense/model.safetensors"), state);
  for (const char* dry : {"", "--dry_run"}) {
    expect_refused(made + dry, "are to be made of");
    EXPECT_THAT(out_ + err_, HasSubstr("model.layers.1.mlp.up_proj.weight"));
  }
}

}  // namespace
}  // namespace tapestry::hf_test

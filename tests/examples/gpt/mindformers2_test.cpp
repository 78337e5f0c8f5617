// Files of MindFormers 2.0 through the program.
#include <gmock/gmock.h>

#include <fstream>

#include "autograd/ops/ops.h"
#include "tests/examples/gpt/hf_folders.h"
#include "tests/says.h"

namespace tapestry::mindformers2_program_test {
namespace {

using hf_test::HfTest;
using hf_test::Json;
using ::testing::HasSubstr;

class MindFormers2Test : public HfTest {
 protected:
  static std::string published(const std::string& name) {
    std::ifstream in(std::string(TAPESTRY_SOURCE_DIR) + "/tests/data/mindformers2/" + name);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  // A Qwen3 as qwen3_sections.yaml has it.
  void write_qwen3(const std::string& folder) {
    const Json config = {{"model_type", "qwen3"},
                         {"architectures", {"Qwen3ForCausalLM"}},
                         {"vocab_size", 264},
                         {"hidden_size", 16},
                         {"intermediate_size", 24},
                         {"num_hidden_layers", 2},
                         {"num_attention_heads", 4},
                         {"num_key_value_heads", 2},
                         {"head_dim", 8},
                         {"rms_norm_eps", 1e-6},
                         {"rope_theta", 10000.0},
                         {"tie_word_embeddings", false},
                         {"max_position_embeddings", 32768},
                         {"hidden_act", "silu"}};
    Shapes shapes = {{"model.embed_tokens.weight", {264, 16}},
                     {"model.norm.weight", {16}},
                     {"lm_head.weight", {264, 16}}};
    for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
      const std::string at = layer;
      for (const auto& [name, shape] : Shapes{{"input_layernorm.weight", {16}},
                                              {"post_attention_layernorm.weight", {16}},
                                              {"self_attn.q_proj.weight", {32, 16}},
                                              {"self_attn.k_proj.weight", {16, 16}},
                                              {"self_attn.v_proj.weight", {16, 16}},
                                              {"self_attn.o_proj.weight", {16, 32}},
                                              {"self_attn.q_norm.weight", {8}},
                                              {"self_attn.k_norm.weight", {8}},
                                              {"mlp.gate_proj.weight", {24, 16}},
                                              {"mlp.up_proj.weight", {24, 16}},
                                              {"mlp.down_proj.weight", {16, 24}}}) {
        shapes.emplace_back(at + name, shape);
      }
    }
    write_folder(folder, config, shapes);
  }
};

// The published model of a billion parameters, made small.
TEST_F(MindFormers2Test, ADeepseekV3Trains) {
  std::string yaml = published("deepseek3_1b.yaml");
  yaml = replaced(yaml, "\"/path/to/data_text_document\"", "\"text_text_document\"");
  yaml = replaced(yaml, "/checkpoint\"", "\"");
  dir_.write("run.yaml", yaml);
  std::string small;
  for (const char* word :
       {"train_dataset.dataloader.config.seq_length=16", "model.seq_length=16",
        "model.vocab_size=264", "model.hidden_size=16", "model.intermediate_size=24",
        "model.num_hidden_layers=2", "model.kv_lora_rank=8", "model.q_lora_rank=12",
        "model.qk_rope_head_dim=4", "model.v_head_dim=8", "model.qk_nope_head_dim=8",
        "model.moe_intermediate_size=8", "model.moe_shared_expert_intermediate_size=8",
        "training.steps=3", "training_config.num_threads=1"}) {
    small += std::string(" --set ") + word;
  }
  ASSERT_EQ(pretrain("--config_path run.yaml" + small), 0) << said();
  const auto lines = steps();
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0]["lr"][0].get<double>(), 1e-5);
  EXPECT_THAT(dir_.read("output/config.yaml"), HasSubstr("micro_batch_num: 8"));
  // Its own configuration, in both spellings.
  for (const std::string spelling : {"1.x", "2.0"}) {
    ASSERT_EQ(pretrain("--config_path run.yaml" + small + " --convert_config " + spelling +
                       " --to as_" + spelling + ".yaml"),
              0)
        << said();
    ASSERT_EQ(pretrain("--config_path as_" + spelling + ".yaml --set training_config.output_dir=o" +
                       spelling),
              0)
        << said();
    const auto again = steps("o" + spelling);
    ASSERT_EQ(again.size(), 3U);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(again[i]["loss"], lines[i]["loss"]) << spelling;
      EXPECT_EQ(again[i]["grad_norm"], lines[i]["grad_norm"]) << spelling;
    }
  }
  ASSERT_EQ(pretrain("--config_path run.yaml" + small + " --print_config"), 0) << said();
  EXPECT_THAT(out_, Says("training_iters: 3  # --set"));
  ASSERT_EQ(pretrain("--config_path run.yaml" + small + " --print_config 2.0"), 0) << said();
  EXPECT_THAT(out_, Says("steps: 3  # --set ... weight_decay: 0.01  # run.yaml:"));
  EXPECT_EQ(pretrain("--config_path run.yaml --convert_config 3.0"), 2);
  EXPECT_THAT(said(), Says("3.0"));
  EXPECT_EQ(pretrain("--config_path run.yaml" + small + " --convert_config 1.x --to as_1.x.yaml"),
            2);
  EXPECT_THAT(said(), Says("as_1.x.yaml ... already"));
}

// Weights in Hugging Face's names: without steps the loss is that of the folder's model.
TEST_F(MindFormers2Test, AQwen3LoadsAHuggingFaceFolder) {
  write_qwen3("qwen3");
  dir_.write("run.yaml", published("qwen3_sections.yaml"));
  const std::string more =
      " --set checkpoint.save_path=output --set training.steps=2 --set "
      "training_config.num_threads=1"
      " --set dataset_config.tokenizer_type=byte";
  ASSERT_EQ(pretrain("--config_path run.yaml" + more +
                     " --set checkpoint.load_path=qwen3 --set checkpoint.no_load_optim=True"),
            0)
      << said();
  EXPECT_THAT(out_, HasSubstr("loaded qwen3"));
  const auto lines = steps();
  ASSERT_EQ(lines.size(), 2U);
  // The same by our own keys.
  dir_.write("own.yaml",
             "training_config: {training_iters: 2, seed: 42, num_threads: 1, output_dir: own}\n"
             "dataset_config: {data_path: text_text_document, split: \"1,0,0\", batch_size: 2, "
             "micro_batch_num: 2, tokenizer_type: byte}\n"
             "model_config: {from_hf: qwen3, seq_length: 16}\n"
             "optimizer_config: {learning_rate: 1e-6, betas: [0.9, 0.95], weight_decay: 0.01, "
             "clip_grad: 1.0}\n");
  ASSERT_EQ(pretrain("--config_path own.yaml"), 0) << said();
  const auto own = steps("own");
  ASSERT_EQ(own.size(), 2U);
  EXPECT_EQ(lines[0]["loss"], own[0]["loss"]);
  EXPECT_EQ(lines[1]["loss"], own[1]["loss"]);
}

// The static file that MindFormers 2.0 publishes for fine-tuning.
TEST_F(MindFormers2Test, AStaticFileFineTunes) {
  write_qwen3("qwen3");
  dir_.write("run.yaml", published("finetune_qwen3.yaml"));
  std::string examples;
  for (int i = 0; i < 24; ++i) {
    examples += R"({"instruction": "Count to )" + std::to_string(i) + R"(.", "input": "", )" +
                R"("output": "It is )" + std::to_string(i) + "\"}\n";
  }
  dir_.write("alpaca.jsonl", examples);
  ASSERT_EQ(pretrain("--config_path run.yaml --set training_config.num_threads=1"
                     " --set dataset_config.tokenizer_type=byte"),
            0)
      << said();
  EXPECT_THAT(out_, HasSubstr("loaded qwen3"));
  EXPECT_GT(steps().size(), 0U);
}

}  // namespace
}  // namespace tapestry::mindformers2_program_test

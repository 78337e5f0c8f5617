// A whole file of MindFormers' static graphs, as its 2.0 still publishes them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "parallel_core/config/config.h"
#include "tests/message_of.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::static_file_test {
namespace {

using data::TempDir;
using ::testing::Contains;
using ::testing::ElementsAre;

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// The published file; its model's folder is replaced by keys of a model.
std::string file(const std::string& data) {
  std::ifstream in("tests/data/mindformers2/finetune_qwen3.yaml");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  return replaced(replaced(replaced(text, "pretrained_model_dir: \"qwen3\"\n", ""), "offset: 0\n",
                           "offset: 0\n    vocab_size: 264\n    num_layers: 2\n"
                           "    hidden_size: 16\n    ffn_hidden_size: 24\n"
                           "    num_attention_heads: 2\n"),
                  "\"alpaca.jsonl\"", data);
}

TEST(StaticFile, FineTuningAsPublished) {
  TempDir dir;
  dir.write("a.jsonl", "{}\n");
  const AllConfig c = init_configs_from_text(file(dir.file("a.jsonl")), "f.yaml");
  EXPECT_EQ(c.training_config.seed, 42);
  EXPECT_EQ(c.training_config.epochs, 1);
  EXPECT_EQ(c.training_config.save_interval, 5000);
  EXPECT_EQ(c.training_config.loss_scale, 1.0);
  EXPECT_EQ(c.optimizer_config.clip_grad, 1.0);
  EXPECT_THAT(c.optimizer_config.betas, ElementsAre(0.9, 0.95));
  EXPECT_EQ(c.optimizer_config.learning_rate, 1e-6);
  EXPECT_EQ(c.dataset_config.micro_batch_num, 4);
  EXPECT_THAT(*c.dataset_config.sft_data_path, ElementsAre(dir.file("a.jsonl")));
  EXPECT_TRUE(c.dataset_config.sft_packing);
  EXPECT_EQ(c.model_config.seq_length, 96);
  EXPECT_EQ(c.model_config.compute_dtype, kBFloat16);
  EXPECT_TRUE(c.model_config.fp32_residual_connection);
  EXPECT_TRUE(c.parallel_config.recompute_config.has_value());
  EXPECT_FALSE(c.training_config.profile);
  EXPECT_THAT(c.notes, Contains(Says("context has no effect ... eagerly")));
}

TEST(StaticFile, WhatItCannotHave) {
  TempDir dir;
  dir.write("a.jsonl", "{}\n");
  const std::string text = file(dir.file("a.jsonl"));
  const auto complaint = [](const std::string& yaml) {
    return message_of<ConfigError>([&] { init_configs_from_text(yaml, "f.yaml"); });
  };
  EXPECT_THAT(complaint(replaced(text, "run_mode: 'finetune'", "run_mode: 'predict'")),
              Says("f.yaml:12:11: run_mode: predict is refused ... generate"));
  EXPECT_THAT(complaint(replaced(text, "layer_scale: False", "layer_scale: True")),
              Says("layer_scale"));
  EXPECT_THAT(complaint(replaced(text, "weight_decay: 0.0", "weight_decays: 0.0")),
              Says("optimizer"));
  EXPECT_THAT(complaint(replaced(text, "n: 2000", "n: 0")), Says("take.n ... more than 0"));
  EXPECT_THAT(complaint(replaced(text, "type: ConstantWarmUpLR", "type: Unknown")),
              Says("type ... Unknown is refused"));
}

}  // namespace
}  // namespace tapestry::static_file_test

// Files of MindFormers 2.0: data, what is watched, adapters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel_core/config/config.h"
#include "tests/message_of.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::mindformers2_data_test {
namespace {

using data::TempDir;
using ::testing::ElementsAre;

const char* const kSchedule = "lr_scheduler:\n  type: ConstantWarmUpLR\n";
const char* const kQwen3 =
    "model:\n  model_type: qwen3\n  vocab_size: 264\n  seq_length: 16\n  hidden_size: 16\n"
    "  intermediate_size: 24\n  num_hidden_layers: 4\n  num_attention_heads: 4\n"
    "  num_key_value_heads: 2\n  head_dim: 8\n";
AllConfig load(const std::string& text, std::vector<std::string> overrides = {}) {
  LoadOptions options;
  options.overrides = std::move(overrides);
  return init_configs_from_text(text, "f.yaml", options);
}
AllConfig qwen3(const std::string& more, std::vector<std::string> overrides = {}) {
  return load(std::string(kQwen3) + kSchedule + more, std::move(overrides));
}
template <class F>
std::string complaints(const F& f) {
  return message_of<ConfigError>(f);
}
std::string complaint(const std::string& more, std::vector<std::string> overrides = {}) {
  return complaints([&] { qwen3(more, std::move(overrides)); });
}
TEST(MindFormers2Data, Data) {
  const std::string blend =
      "train_dataset:\n  dataloader:\n    type: BlendedMegatronDatasetDataLoader\n    config:\n";
  const DatasetConfig data =
      qwen3(blend +
            "      data_path: ['0.3', a, '0.7', b]\n      split: '8, 1, 1'\n"
            "      create_compressed_eod_mask: True\n      eod: 2\n      pad: -1\n")
          .dataset_config;
  EXPECT_THAT(*data.data_path, ElementsAre("0.3", "a", "0.7", "b"));
  EXPECT_EQ(data.split, "8,1,1");
  EXPECT_TRUE(data.reset_attention_mask);
  EXPECT_EQ(data.eos_token_id, 2);
  EXPECT_EQ(data.pad_token_id, std::nullopt);
  EXPECT_THAT(complaint(blend + "      data_path: a\n      seq_length: 32\n"),
              Says("config.seq_length ... 32 ... 16"));
  EXPECT_THAT(complaint("train_dataset:\n  dataloader:\n    type: MindDataset\n"),
              Says("MindDataset is refused ... mindrecord"));
  EXPECT_THAT(complaint(blend + "      data_path: a\n    handler:\n      - type: take\n"
                                "        n: 3\n"),
              Says("handler.take.n ... belongs to HFDataLoader"));
}

// The record beside a data set says what MindFormers has no key for.
TEST(MindFormers2Data, TokenizerOfADataSet) {
  data::TempDir dir;
  dir.write("a.tokenizer.json", "{\"tokenizer_type\": \"byte\", \"vocab_size\": 257}");
  const auto of = [&](const std::string& prefix) {
    return qwen3(
               "train_dataset:\n  dataloader:\n    type: BlendedMegatronDatasetDataLoader\n"
               "    config:\n      data_path: ['1', " +
               dir.file(prefix) + "]\n")
        .dataset_config.tokenizer_type;
  };
  EXPECT_EQ(of("a"), "byte");
  EXPECT_EQ(of("b"), "sentencepiece");
}

TEST(MindFormers2Data, Examples) {
  TempDir dir;
  dir.write("a.jsonl", "{}\n{}\n{}\n");
  const auto of = [&](const std::string& text) {
    return "train_dataset:\n  dataloader:\n    type: HFDataLoader\n    path: json\n"
           "    data_files: " +
           dir.file("a.jsonl") + "\n" + text;
  };
  const std::string pack =
      "    handler:\n      - {type: AlpacaInstructDataHandler, seq_length: 16}\n"
      "      - {type: PackingHandler, seq_length: 16, pack_strategy: pack}\n";
  const DatasetConfig data = qwen3(of(pack)).dataset_config;
  EXPECT_THAT(*data.sft_data_path, ElementsAre(dir.file("a.jsonl")));
  EXPECT_TRUE(data.sft_packing);
  EXPECT_EQ(data.shuffle, false);
  EXPECT_FALSE(qwen3(of("")).dataset_config.sft_packing);
  EXPECT_THAT(complaint(of("    handler:\n      - {type: take, n: 2}\n")),
              Says("handler.take.n ... more than 2 examples ... head -n 2"));
  EXPECT_NO_THROW(qwen3(of("    handler:\n      - {type: take, n: 3}\n")));
  EXPECT_THAT(
      complaint(of("    handler:\n      - {type: PackingHandler, pack_strategy: truncate}\n")),
      Says("truncate is refused"));
  EXPECT_THAT(complaint(of("    handler:\n      - {type: takes, n: 3}\n")),
              Says("takes is not known ... take"));
  EXPECT_THAT(complaint("train_dataset:\n  dataloader:\n    type: HFDataLoader\n"
                        "    path: some-hub/alpaca\n"),
              Says("some-hub/alpaca ... not fetched"));
}

TEST(MindFormers2Data, WatchingAndProfiles) {
  const AllConfig c = qwen3(
      "monitor:\n  train_state:\n    local_norm: [wq, 'a.b']\n    local_loss: True\n"
      "    device_norm: True\n  tensorboard:\n    tensorboard_dir: tb\n"
      "profiler:\n  enable_profiling: True\n  start_step: 2\n  end_step: 3\n"
      "  profiler_level: 1\n");
  EXPECT_TRUE(c.monitor_config.monitor_on);
  EXPECT_EQ(c.monitor_config.step_interval, 1);
  EXPECT_FALSE(qwen3("").monitor_config.monitor_on);
  EXPECT_THAT(*c.monitor_config.local_norm_format, ElementsAre("log"));
  EXPECT_THAT(c.monitor_config.target, ElementsAre("wq", "a\\.b"));
  EXPECT_TRUE(c.monitor_config.local_loss_format.has_value());
  EXPECT_TRUE(c.monitor_config.device_local_norm_format.has_value());
  EXPECT_EQ(c.tensorboard.tensorboard_dir, "tb");
  EXPECT_EQ(c.tensorboard.tensorboard_queue_size, 1000);
  EXPECT_TRUE(c.training_config.profile);
  EXPECT_EQ(c.training_config.profile_step_end, 3);
  EXPECT_EQ(c.training_config.profile_level, "level1");
  EXPECT_EQ(c.training_config.profile_save_path, "./profile");
  EXPECT_THAT(complaint("context:\n  mode: 0\n"), Says("f.yaml:14:9 ... context.mode ... eagerly"));
  EXPECT_THAT(complaint("callbacks:\n  - type: MyCallback\n"), Says("MyCallback is not known"));
}

TEST(MindFormers2Data, Adapters) {
  const LoraConfig lora = qwen3("lora_config:\n  target_modules: '.*linear_qkv'\n").lora_config;
  EXPECT_TRUE(lora.use_lora);
  EXPECT_EQ(lora.lora_alpha, 16);
  EXPECT_THAT(lora.target_cells->patterns, ElementsAre(".*(.*qkv_proj).*"));
  EXPECT_THAT(complaint("lora_config:\n  lora_rank: 4\n"), Says("target_modules ... needed"));
}

}  // namespace
}  // namespace tapestry::mindformers2_data_test

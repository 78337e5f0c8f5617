// Keys about the largest scores of attention.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "parallel_core/config/config.h"
#include "parallel_core/config/init_configs.h"
#include "tests/message_of.h"
#include "tests/says.h"

namespace tapestry {
namespace attention_scores_config_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Settings = std::vector<std::string>;

AllConfig load(const std::string& more, const Settings& settings = {}) {
  return init_configs_from_text(
      "training_config: {training_iters: 4}\nmodel_config:\n"
      "  vocab_size: 32\n  num_layers: 2\n  num_attention_heads: 4\n  hidden_size: 16\n"
      "  ffn_hidden_size: 24\n  seq_length: 8\n" +
          more,
      "f.yaml", {.overrides = settings});
}

std::string refusal(const Settings& settings) {
  return message_of<ValueError>([&] { load("", settings); });
}

const std::string kClip = "optimizer_config.qk_clip_enabled=True";

TEST(AttentionScoresConfig, AreOffByDefault) {
  const AllConfig config = load("");
  EXPECT_FALSE(config.optimizer_config.qk_clip_enabled);
  EXPECT_EQ(config.optimizer_config.qk_clip_threshold, 100);
  EXPECT_FALSE(config.monitor_config.max_logits_interval);
}

TEST(AttentionScoresConfig, TakeAnyOptimizer) {
  for (const char* optimizer : {"AdamW", "Muon", "SGD", "Lion"}) {
    const AllConfig config = load("", {kClip, "optimizer_config.qk_clip_threshold=30",
                                       concat("optimizer_config.optimizer_type=", optimizer)});
    EXPECT_TRUE(config.optimizer_config.qk_clip_enabled);
    EXPECT_EQ(config.optimizer_config.qk_clip_threshold, 30);
    EXPECT_THAT(config.notes, IsEmpty());
  }
}

TEST(AttentionScoresConfig, RefuseWhatWeightsDoNotScale) {
  EXPECT_THAT(refusal({kClip, "model_config.qk_layernorm=True"}),
              Says("optimizer_config.qk_clip_enabled ... model_config.qk_layernorm ... normed "
                   "behind their weights ... leave qk_clip_enabled out"));
  EXPECT_THAT(refusal({kClip, "model_config.attention_softcap=50"}),
              Says("optimizer_config.qk_clip_enabled ... model_config.attention_softcap"));
  EXPECT_THAT(refusal({kClip, "model_config.clip_qkv=8"}),
              Says("optimizer_config.qk_clip_enabled ... model_config.clip_qkv"));
  EXPECT_THAT(refusal({kClip, "lora_config.use_lora=True"}),
              Says("optimizer_config.qk_clip_enabled ... lora_config.use_lora ... frozen"));
  for (const char* value : {"0", "-1", "x"}) {
    EXPECT_THAT(refusal({kClip, concat("optimizer_config.qk_clip_threshold=", value)}),
                HasSubstr("optimizer_config.qk_clip_threshold"));
    EXPECT_THAT(refusal({concat("monitor_config.max_logits_interval=", value)}),
                HasSubstr("monitor_config.max_logits_interval"));
  }
}

TEST(AttentionScoresConfig, SayWhereTheyHaveNoEffect) {
  EXPECT_THAT(load("", {"optimizer_config.qk_clip_threshold=30"}).notes,
              ElementsAre(Says("qk_clip_threshold: has no effect without qk_clip_enabled")));
  const AllConfig recurrent = load(
      "", {kClip, "monitor_config.max_logits_interval=2", "model_config.layer_types=[conv, conv]"});
  EXPECT_THAT(recurrent.notes, Contains(Says("qk_clip_enabled: has no effect: no layer has")));
  EXPECT_THAT(recurrent.notes, Contains(Says("max_logits_interval: has no effect: no layer has")));
}

TEST(AttentionScoresConfig, AreACallbackElsewhere) {
  const auto interval = [](const std::string& callbacks) {
    return load(callbacks).monitor_config.max_logits_interval;
  };
  for (const std::string name : {"MaxLogitsMonitor", "MaxLogitsReset"}) {
    EXPECT_EQ(interval("callbacks:\n  - type: " + name + "\n    step_interval: 5\n"), 5);
    EXPECT_EQ(interval("callbacks:\n  - type: " + name + "\n"), 1);
    EXPECT_EQ(interval("callback:\n  - type: " + name +
                       "\nmonitor_config: "
                       "{max_logits_interval: 3}\n"),
              3);
  }
  EXPECT_THAT(message_of<ValueError>([&] {
                interval("callbacks:\n  - type: MaxLogitsMonitor\n    step_interval: 0\n");
              }),
              Says("f.yaml:11:20 ... max_logits_interval"));
  EXPECT_THAT(message_of<ValueError>([&] {
                interval(
                    "callbacks:\n  - type: MaxLogitsMonitor\nmonitor_config: "
                    "{max_logits_interval: null}\n");
              }),
              Says("monitor_config.max_logits_interval: is null ... MaxLogitsMonitor ... leave one "
                   "of them out"));
}

}  // namespace
}  // namespace attention_scores_config_test
}  // namespace tapestry

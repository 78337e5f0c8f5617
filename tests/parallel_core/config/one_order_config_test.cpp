// post_training_config.zero_mismatch: where sampling and training can have the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/config/init_configs.h"
#include "tests/message_of.h"

namespace tapestry {
namespace {

namespace one_order_config {

using ::testing::HasSubstr;

AllConfig grpo_with(const std::vector<std::string>& more) {
  std::vector<std::string> overrides = {"post_training_config.task=grpo",
                                        "post_training_config.data=[prompts.jsonl]",
                                        "post_training_config.max_completion_length=4"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return init_configs_from_text(
      "training_config: {training_iters: 2}\n"
      "model_config:\n  vocab_size: 31\n  num_layers: 2\n  num_attention_heads: 4\n"
      "  hidden_size: 32\n  ffn_hidden_size: 48\n  seq_length: 8\n"
      "optimizer_config: {learning_rate: 0.01}\n",
      "grpo.yaml", {.overrides = overrides});
}

TEST(ZeroMismatch, IsThereByItselfWherePassesCanHaveTheSameBits) {
  EXPECT_TRUE(grpo_with({"model_config.layer_types=[conv, full_attention]"})
                  .post_training_config.zero_mismatch);
  EXPECT_TRUE(grpo_with({}).post_training_config.zero_mismatch);
  EXPECT_TRUE(
      grpo_with({"model_config.compute_dtype=bfloat16"}).post_training_config.zero_mismatch);
  EXPECT_TRUE(
      grpo_with({"model_config.hidden_dropout=0.1", "post_training_config.disable_dropout=True"})
          .post_training_config.zero_mismatch);
  EXPECT_FALSE(
      grpo_with({"post_training_config.zero_mismatch=False"}).post_training_config.zero_mismatch);
}

struct Obstacle {
  std::string key;
  std::vector<std::string> overrides;
};

TEST(ZeroMismatch, IsOffByItselfElsewhereAndRefusedIfAskedFor) {
  const std::string m = "model_config.";
  const std::string moe = "moe_config.";
  for (const Obstacle& given :
       std::vector<Obstacle>{{m + "compute_dtype", {m + "compute_dtype=float16"}},
                             {m + "use_fused_kernels", {m + "use_fused_kernels=False"}},
                             {m + "softmax_compute_dtype",
                              {m + "compute_dtype=bfloat16", m + "softmax_compute_dtype=bfloat16"}},
                             {m + "layer_types",
                              {m + "layer_types=[linear_attention, full_attention]",
                               m + "linear_num_key_heads=2", m + "linear_num_value_heads=2",
                               m + "linear_key_head_dim=6", m + "linear_value_head_dim=6"}},
                             {m + "rotary_config.rope_type",
                              {m + "position_embedding_type=rope",
                               m + "rotary_config={rope_type: dynamic, rope_scaling_factor: 2.0}"}},
                             {m + "hidden_dropout", {m + "hidden_dropout=0.1"}},
                             {m + "attention_dropout", {m + "attention_dropout=0.1"}},
                             {"lora_config.lora_dropout",
                              {"lora_config.use_lora=True", "lora_config.lora_dropout=0.1"}},
                             {moe + "moe_expert_capacity_factor",
                              {moe + "num_experts=4", moe + "moe_expert_capacity_factor=1.0"}},
                             {moe + "moe_input_jitter_eps",
                              {moe + "num_experts=4", moe + "moe_input_jitter_eps=0.1"}}}) {
    SCOPED_TRACE(given.key);
    EXPECT_FALSE(grpo_with(given.overrides).post_training_config.zero_mismatch);
    std::vector<std::string> asked = given.overrides;
    asked.emplace_back("post_training_config.zero_mismatch=True");
    const std::string message = message_of<ValueError>([&] { grpo_with(asked); });
    EXPECT_THAT(message, HasSubstr("post_training_config.zero_mismatch"));
    EXPECT_THAT(message, HasSubstr("cannot be had with " + given.key));
  }
}

}  // namespace one_order_config

}  // namespace
}  // namespace tapestry

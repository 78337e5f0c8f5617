// training_config.exact: what it sets, and what cannot stand beside it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/config/init_configs.h"
#include "tests/message_of.h"

namespace tapestry {
namespace {

namespace exact_config {

using ::testing::AllOf;
using ::testing::HasSubstr;

AllConfig exact_with(const std::vector<std::string>& more) {
  std::vector<std::string> overrides = {"training_config.exact=True"};
  overrides.insert(overrides.end(), more.begin(), more.end());
  return init_configs_from_text(
      "training_config: {training_iters: 2}\n"
      "model_config:\n  vocab_size: 32\n  num_layers: 2\n  num_attention_heads: 4\n"
      "  hidden_size: 32\n  ffn_hidden_size: 48\n  seq_length: 32\n"
      "optimizer_config: {learning_rate: 0.01}\n",
      "exact.yaml", {.overrides = overrides});
}

const std::string kM = "model_config.";
const std::string kP = "parallel_config.";
const std::string kMoe = "moe_config.";
const std::string kOpt = "optimizer_config.";
const std::string kT = "training_config.";

TEST(Exact, MeansOneMeanOverTheTokensOfAStep) {
  EXPECT_TRUE(exact_with({}).training_config.calculate_per_token_loss);
  EXPECT_TRUE(
      exact_with({kT + "calculate_per_token_loss=True"}).training_config.calculate_per_token_loss);
  EXPECT_FALSE(exact_with({kT + "exact=False"}).training_config.calculate_per_token_loss);
  EXPECT_THAT(message_of<ValueError>([] { exact_with({kT + "calculate_per_token_loss=False"}); }),
              AllOf(HasSubstr("training_config.calculate_per_token_loss"), HasSubstr("set True")));
}

TEST(Exact, TakesWhatHasOneOrder) {
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {kP + "tensor_model_parallel_size=4", kP + "sequence_parallel=True"},
           {kP + "context_parallel_size=8"},
           {kM + "compute_dtype=bfloat16"},
           {kM + "hidden_dropout=0.1", kM + "attention_dropout=0.1"},
           {kOpt + "optimizer_type=Lion"},
           {kOpt + "optimizer_type=SGD"},
           {kM + "mtp_num_layers=1", kM + "position_embedding_type=rope"},
           {"lora_config.use_lora=True"},
           {kMoe + "num_experts=4", kMoe + "moe_router_load_balancing_type=seq_aux_loss",
            kMoe + "moe_aux_loss_coeff=0.01", kP + "expert_model_parallel_size=2"}}) {
    SCOPED_TRACE(::testing::PrintToString(more));
    EXPECT_TRUE(exact_with(more).training_config.exact);
  }
}

struct Refused {
  std::string key;
  std::vector<std::string> overrides;
  std::string fix;
};
void PrintTo(const Refused& refused, std::ostream* out) {
  *out << ::testing::PrintToString(refused.overrides);
}

std::vector<Refused> refused_of_layouts() {
  return {
      {kP + "tensor_model_parallel_size",
       {kP + "tensor_model_parallel_size=3", kM + "num_attention_heads=6", kM + "vocab_size=33",
        kM + "kv_channels=8"},
       "expected 1, 2, 4 or 8"},
      {kP + "tensor_model_parallel_size",
       {kP + "tensor_model_parallel_size=4", kM + "group_query_attention=True",
        kM + "num_query_groups=2"},
       "no more ranks than groups"},
      {kM + "vocab_size",
       {kP + "tensor_model_parallel_size=2", kM + "vocab_size=31"},
       "a multiple of 8"},
      {kP + "context_parallel_size",
       {kP + "context_parallel_size=3", kM + "seq_length=48"},
       "power of two"},
      {kP + "context_parallel_size", {kP + "context_parallel_size=16"}, "32 has 8 leaves"},
  };
}

std::vector<Refused> refused_of_models() {
  return {
      {kM + "compute_dtype", {kM + "compute_dtype=float16"}, "float32 or bfloat16"},
      {kM + "use_fused_kernels", {kM + "use_fused_kernels=False"}, "leave it out"},
      {kM + "softmax_compute_dtype",
       {kM + "compute_dtype=bfloat16", kM + "softmax_compute_dtype=bfloat16"},
       "float32"},
      {kM + "layer_types", {kM + "layer_types=[conv, full_attention]"}, "full_attention"},
      {kM + "logit_softcap", {kM + "logit_softcap=30.0"}, "leave it out"},
      {kM + "hidden_act", {kM + "hidden_act=xielu"}, "another activation"},
      {kM + "layernorm_zero_centered_gamma",
       {kM + "normalization=RMSNorm", kM + "layernorm_zero_centered_gamma=True"},
       "set False"},
      {kM + "enable_hyper_connections", {kM + "enable_hyper_connections=True"}, "set False"},
      {kMoe + "moe_expert_capacity_factor",
       {kMoe + "num_experts=4", kMoe + "moe_expert_capacity_factor=1.0"},
       "no token is dropped"},
      {kMoe + "moe_router_load_balancing_type",
       {kMoe + "num_experts=4", kMoe + "moe_router_load_balancing_type=aux_loss",
        kMoe + "moe_aux_loss_coeff=0.01"},
       "seq_aux_loss"},
      {kMoe + "aux_loss_types",
       {kMoe + "num_experts=4", kMoe + "aux_loss_types=[seq_aux_loss, global_aux_loss]",
        kMoe + "aux_loss_factors=[0.01, 0.01]"},
       "seq_aux_loss"},
      {kMoe + "moe_input_jitter_eps",
       {kMoe + "num_experts=4", kMoe + "moe_input_jitter_eps=0.1"},
       "leave it out"},
  };
}

std::vector<Refused> refused_of_training() {
  return {
      {kOpt + "optimizer_type", {kOpt + "optimizer_type=Muon"}, "AdamW"},
      {kOpt + "optimizer_type", {kOpt + "optimizer_type=Adafactor"}, "AdamW"},
      {kOpt + "optimizer_in_backward", {kOpt + "optimizer_in_backward=True"}, "set False"},
      {kOpt + "main_grads_dtype", {kOpt + "main_grads_dtype=bfloat16"}, "float32"},
      {kT + "loss_reduction", {kT + "loss_reduction=sum"}, "mean"},
      {kT + "loss_scale", {kT + "loss_scale=1024.0"}, "leave it out"},
      {"lora_config.lora_dropout",
       {"lora_config.use_lora=True", "lora_config.lora_dropout=0.1"},
       "set 0"},
      {"lora_config.base_dtype",
       {"lora_config.use_lora=True", "lora_config.base_dtype=q8_0"},
       "params_dtype"},
      {"post_training_config.task",
       {"post_training_config.task=dpo", "post_training_config.data=[pairs.jsonl]"},
       "leave exact out"},
  };
}

class ExactRefuses : public ::testing::TestWithParam<Refused> {};

TEST_P(ExactRefuses, WithKeyReasonAndFix) {
  const std::string message = message_of<ValueError>([] { exact_with(GetParam().overrides); });
  EXPECT_THAT(message, HasSubstr(GetParam().key + ": "));
  EXPECT_THAT(message, HasSubstr("cannot stand beside training_config.exact: True: "));
  EXPECT_THAT(message, HasSubstr(GetParam().fix));
}

INSTANTIATE_TEST_SUITE_P(Layouts, ExactRefuses, ::testing::ValuesIn(refused_of_layouts()));
INSTANTIATE_TEST_SUITE_P(Models, ExactRefuses, ::testing::ValuesIn(refused_of_models()));
INSTANTIATE_TEST_SUITE_P(Training, ExactRefuses, ::testing::ValuesIn(refused_of_training()));

}  // namespace exact_config

}  // namespace
}  // namespace tapestry

#include "diagnosis/accuracy/replay_case.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/io/input_file.h"
#include "parallel_core/config/config.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string reference(const std::string& more = "") {
  return R"({"num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 96, "num_attention_heads": 4,
    "kv_channels": 16, "group_query_attention": true, "num_query_groups": 2, "vocab_size": 256,
    "seq_length": 32, "max_position_embeddings": 40, "normalization": "RMSNorm",
    "norm_epsilon": 1e-05, "position_embedding_type": "rope", "rotary_base": 5000.0,
    "rotary_percent": 0.5, "untie_embeddings_and_output_weights": true, "hidden_act": "swiglu",
    "add_bias_linear": false, "add_qkv_bias": true, "qk_layernorm": true, "window_size": [7, 0],
    "init_method_std": 0.08, "init_jitter": 0.05, "num_moe_experts": null, "moe_router_topk": 2,
    "moe_ffn_hidden_size": 96, "moe_layer_freq": 1, "compute_dtype": "float32",
    "bf16_round_matmul_output": true, "fp32_residual_connection": true, "train_iters": 20,
    "micro_batch_size": 2, "global_batch_size": 8, "data_parallel_size": 2,
    "calculate_per_token_loss": true, "lr": 0.003, "min_lr": 0.0003, "lr_decay_style": "cosine",
    "lr_warmup_iters": 4, "lr_warmup_init": 0.0001, "lr_decay_iters": 18, "weight_decay": 0.1,
    "clip_grad": 1.0, "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1e-07, "seed": 13,
    "data_int_dtype": "int32", "dump_grad_steps": [1], "dump_weight_steps": [])" +
         more + "}";
}

AllConfig convert(const std::string& json) {
  return init_configs_from_text(replay_case_yaml(json, "/cases/a b", "out"), "g.yaml");
}

TEST(ReplayCase, EveryKeyArrives) {
  const AllConfig config = convert(reference());
  EXPECT_THAT(config.unsupported, IsEmpty());
  const auto& model = config.model_config;
  EXPECT_EQ(model.num_query_groups, 2);
  EXPECT_EQ(model.max_position_embeddings, 40);
  EXPECT_EQ(model.rotary_config.rotary_base, 5000.0);
  EXPECT_EQ(model.rotary_config.rotary_percent, 0.5);
  EXPECT_EQ(model.norm_epsilon, 1e-5);
  EXPECT_TRUE(model.qkv_has_bias);
  EXPECT_FALSE(model.out_proj_has_bias);
  EXPECT_FALSE(model.mlp_has_bias);
  EXPECT_TRUE(model.qk_layernorm);
  EXPECT_THAT(*model.window_size, ElementsAre(7, 0));
  const auto& training = config.training_config;
  EXPECT_EQ(training.training_iters, 20);
  EXPECT_EQ(training.load_checkpoint, "/cases/a b/init.safetensors");
  EXPECT_EQ(training.output_dir, "out");
  EXPECT_TRUE(training.calculate_per_token_loss);
  EXPECT_TRUE(training.log_param_grad_norms);
  EXPECT_THAT(training.dump_grad_steps, ElementsAre(1));
  EXPECT_THAT(training.dump_weight_steps, ElementsAre(20));
  EXPECT_EQ(config.dataset_config.step_data_dir, "/cases/a b/data");
  EXPECT_EQ(config.dataset_config.batch_size, 2);
  EXPECT_EQ(config.dataset_config.micro_batch_num, 4);  // one rank takes all of them
  const auto& optimizer = config.optimizer_config;
  EXPECT_EQ(optimizer.learning_rate, 0.003);
  EXPECT_EQ(optimizer.lr_decay_iters, 18);
  EXPECT_EQ(optimizer.eps, 1e-7);
  EXPECT_THAT(optimizer.betas, ElementsAre(0.9, 0.95));
  EXPECT_EQ(gradient_clipping(config), (GradClipConfig{"ClipGlobalNorm", 1.0}));
}

TEST(ReplayCase, BatchesAreSharedAmongTheRanksOfTheReplay) {
  EXPECT_THAT(replay_case_yaml(reference(), "c", "o", 2), HasSubstr("micro_batch_num: 2\n"));
  EXPECT_THROW(replay_case_yaml(reference(), "c", "o", 3), ValueError);
  EXPECT_THROW(replay_case_yaml(reference(), "c", "o", 0), ValueError);
}

TEST(ReplayCase, ReducedPrecisionArrives) {
  std::string bf16 = reference();
  bf16.replace(bf16.find("\"float32\""), 9, "\"bfloat16\"");
  const AllConfig config = convert(bf16);
  EXPECT_THAT(config.unsupported, IsEmpty());
  EXPECT_EQ(config.model_config.compute_dtype, kBFloat16);
  EXPECT_TRUE(config.model_config.fp32_residual_connection);
}

AllConfig convert_experts(const std::string& more) {
  std::string experts = reference(more);
  experts.replace(experts.find("\"num_moe_experts\": null"), 23, "\"num_moe_experts\": 8");
  return convert(experts);
}

TEST(ReplayCase, ExpertsArrive) {
  const AllConfig config = convert_experts(
      R"(, "moe_router_pre_softmax": false, "moe_aux_loss_coeff": 0.02, "moe_z_loss_coeff": 0.0,
         "moe_expert_capacity_factor": 0.9, "moe_token_drop_policy": "position",
         "moe_shared_expert_intermediate_size": null)");
  const MoEConfig& moe = config.model_config.moe;
  EXPECT_EQ(moe.num_experts, 8);
  EXPECT_EQ(moe.moe_router_topk, 2);
  EXPECT_EQ(moe.moe_ffn_hidden_size, 96);
  EXPECT_EQ(moe.norm_topk_prob, true);
  EXPECT_THAT(moe.balance_losses, ElementsAre(MoEBalanceLoss{"aux_loss", 0.02}));
  EXPECT_EQ(moe.moe_z_loss_coeff, std::nullopt);
  EXPECT_EQ(moe.moe_expert_capacity_factor, 0.9);
  EXPECT_EQ(moe.moe_token_drop_policy, "position");
  EXPECT_TRUE(is_moe_layer(config.model_config, 1));
}

TEST(ReplayCase, LaterKeysOfExpertsArrive) {
  const MoEConfig moe = convert_experts(R"(, "moe_aux_loss_coeff": 0.01, "moe_z_loss_coeff": 0.001,
           "moe_router_load_balancing_type": "seq_aux_loss", "use_shared_expert_gating": true,
           "moe_shared_expert_intermediate_size": 32, "moe_router_score_function": "sigmoid",
           "norm_topk_prob": false, "moe_router_topk_scaling_factor": 2.5,
           "topk_method": "noaux_tc", "moe_router_num_groups": 4, "moe_router_group_topk": 2,
           "moe_router_enable_expert_bias": true, "moe_router_bias_update_rate": 0.01)")
                            .model_config.moe;
  EXPECT_THAT(moe.balance_losses, ElementsAre(MoEBalanceLoss{"seq_aux_loss", 0.01}));
  EXPECT_EQ(moe.moe_z_loss_coeff, 0.001);
  EXPECT_TRUE(moe.use_shared_expert_gating);
  EXPECT_EQ(moe.moe_shared_expert_intermediate_size, 32);
  EXPECT_EQ(moe.moe_router_score_function, "sigmoid");
  EXPECT_EQ(moe.norm_topk_prob, false);
  EXPECT_FALSE(moe.moe_router_pre_softmax);
  EXPECT_EQ(moe.moe_router_topk_scaling_factor, 2.5);
  EXPECT_EQ(moe.topk_method, "noaux_tc");
  EXPECT_EQ(moe.moe_router_num_groups, 4);
  EXPECT_EQ(moe.moe_router_group_topk, 2);
  EXPECT_TRUE(moe.moe_router_enable_expert_bias);
  EXPECT_EQ(moe.moe_router_bias_update_rate, 0.01);
  // A softmax over all experts that is not normalised, which the reference names by this key alone.
  EXPECT_TRUE(convert_experts(R"(, "moe_router_pre_softmax": false, "norm_topk_prob": false)")
                  .model_config.moe.moe_router_pre_softmax);
}

// Of a model without experts their keys say nothing.
TEST(ReplayCase, KeysOfNoExpertsAreLeftOut) {
  const AllConfig config = convert(reference(R"(, "moe_expert_capacity_factor": 0.9,
      "topk_method": "greedy", "use_shared_expert_gating": false, "norm_topk_prob": null)"));
  EXPECT_TRUE(config.moe_config == MoEConfig());
  EXPECT_THAT(config.notes, IsEmpty());
}

TEST(ReplayCase, BadInput) {
  const auto message = [](const std::string& json) -> std::string {
    try {
      replay_case_yaml(json, "c", "o");
    } catch (const ValueError& error) {
      return error.what();
    }
    return "(accepted)";
  };
  EXPECT_THAT(message("{"), HasSubstr("not a JSON object"));
  EXPECT_THAT(message("[1]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(message("{}"), HasSubstr("'train_iters' is missing"));
  EXPECT_THAT(message(reference(", \"warp\": 1")), HasSubstr("unknown key 'warp'"));
  EXPECT_THAT(message(reference(", \"hidden_dropout\": {}")), HasSubstr("hidden_dropout"));
  std::string text = reference();
  text.replace(text.find("\"adam_beta1\": 0.9"), 17, "\"adam_beta1\": \"x\"");
  EXPECT_THAT(message(text), HasSubstr("adam_beta1: unexpected value \"x\""));
}

// The page on replaying has a configuration that was written down beside the stored case.
TEST(ReplayCase, StoredConfigurationSaysWhatTheCaseSays) {
  const std::string folder = "tests/data/golden_models/llama_tiny";
  const AllConfig written = init_configs_from_yaml(folder + "/run.yaml");
  const AllConfig made = init_configs_from_text(
      replay_case_yaml(read_file(folder + "/config.json"), folder, "output/replay/run"),
      "made.yaml");
  EXPECT_TRUE(written.same_values(made));
}

}  // namespace
}  // namespace tapestry

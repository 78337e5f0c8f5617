// Files of MindFormers 2.0: what its sections become, what is derived, what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "parallel_core/config/config.h"
#include "parallel_core/config/init_configs.h"
#include "tests/message_of.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::mindformers2_test {
namespace {

using data::TempDir;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const char* const kSchedule = "lr_scheduler:\n  type: ConstantWarmUpLR\n";
const char* const kQwen3 =
    "model:\n  model_type: qwen3\n  vocab_size: 264\n  seq_length: 16\n  hidden_size: 16\n"
    "  intermediate_size: 24\n  num_hidden_layers: 4\n  num_attention_heads: 4\n"
    "  num_key_value_heads: 2\n  head_dim: 8\n";
const char* const kDeepseek =
    "model:\n  model_type: deepseek_v3\n  vocab_size: 264\n  seq_length: 16\n  hidden_size: 16\n"
    "  intermediate_size: 24\n  num_hidden_layers: 4\n  num_attention_heads: 2\n"
    "  q_lora_rank: 12\n  kv_lora_rank: 8\n  qk_nope_head_dim: 8\n  qk_rope_head_dim: 4\n"
    "  v_head_dim: 8\n  qk_layernorm: True\n  n_routed_experts: 4\n  num_experts_per_tok: 2\n"
    "  n_group: 2\n  topk_group: 1\n  moe_intermediate_size: 8\n  first_k_dense_replace: 1\n";

AllConfig load(const std::string& text, std::vector<std::string> overrides = {}) {
  LoadOptions options;
  options.overrides = std::move(overrides);
  return init_configs_from_text(text, "f.yaml", options);
}
AllConfig qwen3(const std::string& more, std::vector<std::string> overrides = {}) {
  return load(std::string(kQwen3) + kSchedule + more, std::move(overrides));
}
AllConfig deepseek(const std::string& more, std::vector<std::string> overrides = {}) {
  return load(std::string(kDeepseek) + more + kSchedule, std::move(overrides));
}
template <class F>
std::string complaints(const F& f) {
  return message_of<ConfigError>(f);
}
std::string complaint(const std::string& more, std::vector<std::string> overrides = {}) {
  return complaints([&] { qwen3(more, std::move(overrides)); });
}
std::string read(const std::string& name) {
  std::ifstream in("tests/data/mindformers2/" + name);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(MindFormers2, DefaultsAreTheirs) {
  const AllConfig c = qwen3("");
  EXPECT_EQ(c.training_config.seed, 42);
  EXPECT_EQ(c.training_config.training_iters, 1000);
  EXPECT_EQ(c.training_config.save_interval, 1000);
  EXPECT_EQ(c.training_config.log_interval, 1);
  EXPECT_EQ(c.optimizer_config.clip_grad, 1.0);
  EXPECT_EQ(c.optimizer_config.weight_decay, 0.01);
  EXPECT_THAT(c.optimizer_config.betas, ElementsAre(0.9, 0.95));
  EXPECT_EQ(c.optimizer_config.learning_rate, 1e-5);
  EXPECT_EQ(c.parallel_config.zero_level, "z3");
  EXPECT_EQ(c.model_config.compute_dtype, kBFloat16);
  EXPECT_EQ(c.model_config.norm_epsilon, 1e-6);
  EXPECT_EQ(c.model_config.init_method_std, 0.01);
  EXPECT_EQ(c.origins.at("training_config.seed").text, "default of MindFormers 2.0");
}

TEST(MindFormers2, Qwen3) {
  const AllConfig c = qwen3("");
  EXPECT_EQ(c.model_config.num_layers, 4);
  EXPECT_TRUE(c.model_config.qk_layernorm);
  EXPECT_TRUE(c.model_config.group_query_attention);
  EXPECT_EQ(c.model_config.num_query_groups, 2);
  EXPECT_EQ(c.model_config.kv_channels, 8);
  EXPECT_EQ(c.model_config.hidden_act, "swiglu");
  EXPECT_EQ(c.model_config.normalization, "RMSNorm");
  EXPECT_TRUE(c.model_config.untie_embeddings_and_output_weights);
  EXPECT_FALSE(c.model_config.mlp_has_bias);
  EXPECT_EQ(c.model_config.position_embedding_type, "rope");
  EXPECT_EQ(c.moe_config.num_experts, 1);
  EXPECT_EQ(c.model_config.mtp_num_layers, 0);
  EXPECT_THAT(complaints([] { load(std::string(kQwen3) + "  n_routed_experts: 4\n" + kSchedule); }),
              Says("f.yaml:11:21 ... model.n_routed_experts ... qwen3"));
}

TEST(MindFormers2, DeepseekV3) {
  const AllConfig c = deepseek(
      "  moe_aux_loss_coeff: 0.001\n"
      "  moe_router_load_balancing_type: seq_aux_loss\n");
  EXPECT_TRUE(c.model_config.multi_latent_attention);
  EXPECT_EQ(c.model_config.q_lora_rank, 12);
  EXPECT_EQ(c.model_config.qk_head_dim, 8);
  EXPECT_EQ(c.model_config.qk_pos_emb_head_dim, 4);
  EXPECT_TRUE(c.model_config.rotary_config.rotary_interleaved);
  EXPECT_EQ(c.model_config.mtp_num_layers, 1);
  const MoEConfig& moe = c.moe_config;
  EXPECT_EQ(moe.num_experts, 4);
  EXPECT_EQ(moe.topk_method, "noaux_tc");
  EXPECT_EQ(moe.moe_router_num_groups, 2);
  EXPECT_EQ(moe.moe_router_score_function, "sigmoid");
  EXPECT_EQ(moe.moe_router_topk_scaling_factor, 2.5);
  EXPECT_EQ(moe.norm_topk_prob, true);
  EXPECT_EQ(moe.moe_shared_expert_intermediate_size, 8);
  EXPECT_TRUE(moe.moe_router_enable_expert_bias);
  EXPECT_EQ(moe.moe_router_load_balancing_type, "seq_aux_loss");
  EXPECT_EQ(moe.moe_aux_loss_choice, "scores");
}

// 4.1 and 4.2: scores grow by mscale, also without yarn, with a factor of 40 by default.
TEST(MindFormers2, GrowthOfScores) {
  const double m = 0.1 * 0.707 * std::log(40.0) + 1;
  const AllConfig rope = deepseek("");
  ASSERT_TRUE(rope.model_config.attention_scale.has_value());
  EXPECT_NEAR(*rope.model_config.attention_scale, m * m / std::sqrt(12.0), 1e-15);
  const AllConfig yarn =
      deepseek("  position_embedding_type: yarn\n  max_position_embeddings: 128\n");
  EXPECT_FALSE(yarn.model_config.attention_scale.has_value());
  EXPECT_NEAR(attention_scale(yarn.model_config), m * m / std::sqrt(12.0), 1e-15);
  const RotaryConfig& rotary = yarn.model_config.rotary_config;
  EXPECT_EQ(rotary.rope_type, "yarn");
  EXPECT_EQ(rotary.rope_scaling_factor, 40);
  EXPECT_EQ(rotary.original_max_position_embeddings, 128);
  EXPECT_FALSE(rotary.mscale_on_angles);
  const AllConfig scaled = deepseek(
      "  max_position_embeddings: 128\n"
      "  rope_scaling: {type: yarn, factor: 4, mscale: 1.0, mscale_all_dim: 1.0}\n");
  EXPECT_EQ(scaled.model_config.rotary_config.original_max_position_embeddings, 16);
  EXPECT_EQ(scaled.model_config.rotary_config.rope_scaling_factor, 4);
  const AllConfig none = deepseek("  rotary_scaling_factor: 1\n");
  EXPECT_FALSE(none.model_config.attention_scale.has_value());
}

TEST(MindFormers2, AnglesGrowWhereStrengthsDiffer) {
  const AllConfig c = deepseek("  position_embedding_type: yarn\n  mscale: 1.0\n");
  EXPECT_TRUE(c.model_config.rotary_config.mscale_on_angles);
  EXPECT_TRUE(c.model_config.attention_scale.has_value());
}

TEST(MindFormers2, WhatIsPassedOverThereIsNamed) {
  const AllConfig c = deepseek(
      "  initializer_range: 0.006\n  scaling_factor: 8\n  scoring_func: softmax\n"
      "  moe_z_loss_coeff: 0.1\n  moe_expert_capacity_factor: 1.5\n");
  EXPECT_EQ(c.model_config.init_method_std, 0.01);
  EXPECT_EQ(c.moe_config.moe_z_loss_coeff, std::nullopt);
  EXPECT_THAT(c.notes, AllOf(Contains(Says("f.yaml:21:22 ... initializer_range ... 0.01")),
                             Contains(Says("scaling_factor ... 40")),
                             Contains(Says("scoring_func ... sigmoid")),
                             Contains(Says("moe_z_loss_coeff ... there is none here")),
                             Contains(Says("moe_expert_capacity_factor ... none are dropped"))));
}

class MindFormers2Ranks : public ::testing::Test {
 protected:
  AllConfig ranks(int64_t number, const std::string& more) {
    dir_.write("f.yaml", std::string(kQwen3) + kSchedule + more);
    return init_configs_for_ranks(dir_.file("f.yaml"), number);
  }
  TempDir dir_;
};

TEST_F(MindFormers2Ranks, MicroBatchesFollowFromTheRanks) {
  const std::string batch = "training:\n  global_batch_size: 16\n  local_batch_size: 2\n";
  EXPECT_EQ(ranks(1, batch).dataset_config.micro_batch_num, 8);
  EXPECT_EQ(ranks(4, batch).dataset_config.micro_batch_num, 2);
  EXPECT_EQ(ranks(8, batch + "parallelism:\n  tensor_parallel: 2\n  pipeline_parallel: 2\n")
                .dataset_config.micro_batch_num,
            4);
  EXPECT_EQ(qwen3(batch).dataset_config.micro_batch_num, 8);
  EXPECT_EQ(qwen3(batch, {"parallel_config.data_parallel_size=4"}).dataset_config.micro_batch_num,
            2);
  EXPECT_EQ(qwen3(batch + "tapestry:\n  parallel_config:\n    data_parallel_size: 2\n")
                .dataset_config.micro_batch_num,
            4);
  EXPECT_THAT(complaints([&] { ranks(3, batch); }),
              Says("training.global_batch_size ... 16 ... 6 ... 3 data-parallel ranks"));
  EXPECT_THAT(complaints([&] { ranks(16, batch); }), Says("training.global_batch_size ... 32"));
}

TEST_F(MindFormers2Ranks, Shards) {
  const std::string batch = "training:\n  global_batch_size: 16\n";
  const auto with = [&](const std::string& size) {
    return batch + "parallelism:\n  data_parallel_shard: " + size + "\n";
  };
  EXPECT_EQ(ranks(4, with("4")).parallel_config.zero_level, "z3");
  EXPECT_EQ(ranks(4, with("-1")).parallel_config.zero_level, "z3");
  EXPECT_EQ(ranks(4, with("1")).parallel_config.zero_level, std::nullopt);
  EXPECT_THAT(complaints([&] { ranks(4, with("2")); }),
              Says("data_parallel_shard ... 2 ... 4 data-parallel ranks ... not built"));
  const AllConfig unknown = qwen3(with("4"));
  EXPECT_EQ(unknown.parallel_config.data_parallel_size, 4);
  EXPECT_EQ(unknown.dataset_config.micro_batch_num, 4);
}

TEST(MindFormers2, GatheredWeights) {
  const auto policy = [](const std::string& text) { return qwen3("parallelism:\n" + text); };
  EXPECT_FALSE(keeps_gathered_weights(policy("  tensor_parallel: 1\n")));
  EXPECT_TRUE(keeps_gathered_weights(policy("  pipeline_parallel: 2\n")));
  EXPECT_FALSE(keeps_gathered_weights(
      policy("  pipeline_parallel: 2\n  reshard_after_forward_policy: always\n")));
  EXPECT_TRUE(keeps_gathered_weights(policy("  reshard_after_forward_policy: never\n")));
}

TEST(MindFormers2, LayersOfStages) {
  const auto stages = [](const std::string& text) {
    return qwen3("parallelism:\n  pipeline_parallel: 2\n" + text).parallel_config;
  };
  const auto wrong = [&](const std::string& text) { return complaints([&] { stages(text); }); };
  const std::string key = "  pipeline_parallel_layers_per_stage: ";
  EXPECT_EQ(stages("").num_layer_list, std::nullopt);
  EXPECT_EQ(stages(key + "['0-2', '3']\n").num_layer_list, LayerTable({{3, 1}}));
  const ModelParallelConfig two =
      stages("  pipeline_parallel_interleave_num: 2\n" + key + "['0,2', '1, 3']\n");
  EXPECT_EQ(two.virtual_pipeline_model_parallel_size, 2);
  EXPECT_EQ(two.num_layer_list, LayerTable({{1, 1}, {1, 1}}));
  EXPECT_THAT(wrong(key + "['0-1', '3']\n"), Says("f.yaml ... stage 1 begins with layer 3 ... 2"));
  EXPECT_THAT(wrong(key + "['0-1', '2']\n"), Says("ends with layer 2 ... 4 layers"));
  EXPECT_THAT(wrong(key + "['0-3']\n"), Says("has 1 texts ... 2"));
  EXPECT_THAT(wrong(key + "['0-1', 'x']\n"), Says("'x' is no range"));
  EXPECT_THAT(wrong(key + "even\n"), Says("is even, expected auto"));
  EXPECT_THAT(complaint("parallelism:\n  pipeline_parallel: 3\n"),
              Says("auto divides 4 layers ... 3 stages"));
}

TEST(MindFormers2, Recompute) {
  const auto of = [](const std::string& text) {
    return qwen3("recompute:\n" + text).parallel_config.recompute_config;
  };
  EXPECT_EQ(of("  mode: \"None\"\n"), std::nullopt);
  EXPECT_THAT(*of("  mode: full\n  full_recompute_layer: [0-1, \"3\"]\n")->recompute_layers,
              ElementsAre(0, 1, 3));
  const auto chosen =
      of("  mode: select\n  select_module:\n    mlp\\..*: [0-1]\n    \".*layernorm\": [0-1]\n"
         "  exclude_op: [MatMul]\n");
  EXPECT_THAT(*chosen->select_recompute_layers, ElementsAre(0, 1));
  // The layer that predicts further tokens has the number behind the model's own.
  const auto with_ahead = [](const std::string& layers) {
    return deepseek("recompute:\n  mode: full\n  full_recompute_layer: " + layers + "\n")
        .parallel_config.recompute_config;
  };
  EXPECT_THAT(*with_ahead("[1, 3-4]")->recompute_layers, ElementsAre(1, 3));
  EXPECT_THAT(complaints([&] { with_ahead("[1, 4]"); }), Says("has layer 4 ... without layer 3"));
  EXPECT_THAT(complaints([&] { with_ahead("[1, 5]"); }), Says("layer 5 is not one of 0 to 3"));
  EXPECT_THAT(complaint("recompute:\n  mode: full\n"), Says("needs full_recompute_layer"));
  EXPECT_THAT(complaint("recompute:\n  mode: select\n"), Says("needs select_module"));
  EXPECT_THAT(complaint("recompute:\n  mode: full\n  full_recompute_layer: [3, 1]\n"),
              Says("'1' ... ascending"));
  EXPECT_THAT(complaint("recompute:\n  mode: select\n  select_module: {mlp: [0], add: [1]}\n"),
              Says("other layers"));
  EXPECT_THAT(complaint("recompute:\n  mode: select\n  select_module: {'(': [0]}\n"),
              Says("no regular expression"));
  EXPECT_THAT(complaint("swap:\n  enable: True\n"), Says("f.yaml:14:11 ... swap.enable ... host"));
}

TEST(MindFormers2, Checkpoints) {
  const TrainingConfig off =
      qwen3("checkpoint:\n  enable_save: False\n  save_path: runs/a/checkpoint/\n").training_config;
  EXPECT_EQ(off.save_interval, std::nullopt);
  EXPECT_FALSE(off.save_last);
  EXPECT_EQ(off.output_dir, "runs/a");
  EXPECT_EQ(qwen3("checkpoint:\n  save_path: there\n").training_config.output_dir, "there");
  const TrainingConfig on =
      qwen3("checkpoint:\n  load_path: there\n  save_max: 2\n").training_config;
  EXPECT_TRUE(on.resume_training.on);
  EXPECT_EQ(on.load_checkpoint, "there");
  EXPECT_EQ(on.keep_checkpoint_max, 2);
  EXPECT_FALSE(qwen3("checkpoint:\n  load_path: there\n  no_load_optim: True\n")
                   .training_config.resume_training.on);
}

TEST(MindFormers2, Schedules) {
  const auto of = [](const std::string& text, int64_t steps = 100) {
    return load(std::string(kQwen3) + "training: {steps: " + std::to_string(steps) +
                "}\nlr_scheduler:\n" + text)
        .optimizer_config;
  };
  const OptimizerConfig warm =
      of("  type: ConstantWarmUpLR\n  learning_rate: 1e-4\n  warmup_ratio: 0.1\n");
  EXPECT_EQ(warm.lr_decay_style, "constant");
  EXPECT_EQ(warm.lr_warmup_iters, 10);
  EXPECT_EQ(warm.lr_warmup_init, 0.0);
  const OptimizerConfig cosine =
      of("  type: CosineWithWarmUpLR\n  learning_rate: 1e-4\n  lr_end: 1e-6\n  warmup_steps: 5\n"
         "  warmup_lr_init: 1e-7\n  decay_ratio: 0.5\n");
  EXPECT_EQ(cosine.lr_decay_style, "cosine");
  EXPECT_EQ(cosine.min_lr, 1e-6);
  EXPECT_EQ(cosine.lr_warmup_init, 1e-7);
  EXPECT_EQ(cosine.lr_decay_iters, 50);
  EXPECT_EQ(of("  type: LinearWithWarmUpLR\n").lr_decay_style, "linear");
  const OptimizerConfig stable =
      of("  type: WarmUpStableDecayLR\n  learning_rate: 1e-4\n  decay_start_ratio: 0.8\n");
  EXPECT_EQ(stable.lr_decay_style, "WSD");
  EXPECT_EQ(stable.lr_wsd_decay_iters, 20);
  EXPECT_EQ(stable.min_lr, 1e-7);
  const auto wrong = [&](const std::string& text) { return complaints([&] { of(text); }); };
  EXPECT_THAT(wrong("  type: ConstantWarmUpLR\n  t_max: 5\n"),
              Says("f.yaml:14:10 ... lr_scheduler.t_max ... no key of ConstantWarmUpLR"));
  EXPECT_THAT(wrong("  learning_rate: 1e-4\n"), Says("lr_scheduler.type ... needed"));
  EXPECT_THAT(wrong("  type: LearningRateWiseLayer\n"), Says("is refused"));
  EXPECT_THAT(wrong("  type: WarmUpStableDecayLR\n"), Says("needs decay_start_steps"));
  EXPECT_THAT(wrong("  type: CosineWithWarmUpLR\n  decay_ratio: 2.0\n"), Says("from 0 to 1"));
}

TEST(MindFormers2, FurtherSchedules) {
  const auto of = [](const std::string& text) {
    return load(std::string(kQwen3) + "training: {steps: 100}\nlr_scheduler:\n" + text)
        .optimizer_config;
  };
  const OptimizerConfig down =
      of("  type: ConstantWithCoolDownLR\n  learning_rate: 1e-3\n  warmup_steps: 5\n"
         "  keep_steps: 10\n  decay_steps: 40\n  lr_end1: 1e-4\n  final_steps: 20\n"
         "  lr_end2: 1e-5\n");
  EXPECT_EQ(down.lr_decay_style, "cooldown");
  EXPECT_EQ(down.lr_decay_iters, 55);
  EXPECT_EQ(down.lr_keep_iters, 10);
  EXPECT_EQ(down.lr_final_iters, 20);
  EXPECT_EQ(down.min_lr, 1e-4);
  EXPECT_EQ(down.final_lr, 1e-5);
  const OptimizerConfig restarts =
      of("  type: CosineAnnealingWarmRestarts\n  base_lr: 1e-3\n  t_0: 7\n  t_mult: 2\n");
  EXPECT_EQ(restarts.lr_decay_style, "warm_restarts");
  EXPECT_EQ(restarts.learning_rate, 1e-3);
  EXPECT_EQ(restarts.lr_restart_iters, 7);
  EXPECT_EQ(restarts.lr_restart_mult, 2);
  EXPECT_EQ(of("  type: CosineAnnealingLR\n  base_lr: 1e-3\n  t_max: 9\n").lr_decay_iters, 9);
  EXPECT_EQ(of("  type: PolynomialWithWarmUpLR\n  power: 2.0\n").lr_decay_power, 2.0);
  EXPECT_EQ(of("  type: CosineWithRestartsAndWarmUpLR\n").lr_num_cycles, 1.0);
}

TEST(MindFormers2, Optimizers) {
  EXPECT_THAT(complaint("optimizer:\n  type: SGD\n"), Says("optimizer.type ... SGD is refused"));
  EXPECT_THAT(complaint("optimizer:\n  ns_steps: 3\n"), Says("ns_steps ... belongs to Muon"));
  EXPECT_THAT(complaint("optimizer:\n  amsgrad: True\n"), Says("amsgrad ... refused"));
  EXPECT_EQ(qwen3("optimizer:\n  eps: 1.e-6\n").optimizer_config.eps, 1e-6);
  EXPECT_THAT(complaint("optimizer:\n  type: Muon\n  qk_clip_enabled: True\n"),
              Says("qk_clip_enabled ... multi-latent attention"));
  EXPECT_THAT(complaint("optimizer:\n  type: Muon\n  qk_clip_enabled: False\n"
                        "  ns_coefficients: [1, 2]\n"),
              Says("ns_coefficients ... three numbers"));
  const OptimizerConfig muon =
      qwen3(
          "optimizer:\n  type: Muon\n  betas: [0.5, 0.5]\n  adamw_betas: [0.8, 0.9]\n"
          "  momentum: 0.9\n  qk_clip_enabled: False\n  ns_steps: 4\n")
          .optimizer_config;
  EXPECT_EQ(muon.optimizer_type, "Muon");
  EXPECT_THAT(muon.betas, ElementsAre(0.8, 0.9));
  EXPECT_EQ(muon.momentum, 0.9);
  EXPECT_EQ(muon.ns_steps, 4);
  EXPECT_THAT(*muon.adamw_include, ElementsAre("*word_embeddings*", "*output_layer*"));
  EXPECT_THAT(*qwen3("").optimizer_config.weight_decay_exclude, IsEmpty());
  EXPECT_THAT(complaint("training:\n  max_norm: 0.0\n"), Says("max_norm ... above 0"));
}

TEST(MindFormers2, Strict) {
  EXPECT_THAT(complaint("training:\n  stepz: 3\n"),
              Says("f.yaml:14:3 ... training.stepz ... training.steps"));
  EXPECT_THAT(complaint("training:\n  steps: many\n"),
              Says("f.yaml:14:10 ... training.steps ... expected int ... 'many'"));
  EXPECT_THAT(complaint("training:\n  seed: True\n"), Says("training.seed ... expected int"));
  EXPECT_THAT(complaint("trainings:\n  steps: 3\n"),
              Says("f.yaml:13:1 ... trainings ... training"));
  EXPECT_THAT(complaint("training:\n  training_iters: 3\n"),
              Says("training.training_iters ... of 1.x ... training.steps"));
  EXPECT_THAT(complaint("training_config:\n  training_iters: 3\n"),
              Says("training_config ... tapestry"));
  EXPECT_THAT(complaint("parallelism:\n  reduce_dtype: float32\n"), Says("reduce_dtype ... gone"));
  EXPECT_THAT(complaint("parallelism: 3\n"), Says("parallelism: expected a mapping"));
  EXPECT_THAT(complaints([] { load("model: {model_type: deepseek_v4}\ntraining: {steps: 1}\n"); }),
              Says("model_type ... deepseek_v4 is refused ... deepseek_v3, qwen3"));
  EXPECT_THAT(
      complaints([] { load("training: {steps: 1}\nlr_scheduler: {type: ConstantWarmUpLR}\n"); }),
      Says("model_type"));
  for (const char* key : {"dsa_indexer_n_heads: 2", "csa_window: 3", "o_groups: 2",
                          "moe_n_hash_layers: 3", "experimental_attention_variant: dsa"}) {
    EXPECT_THAT(complaints([&] { deepseek(std::string("  ") + key + "\n"); }),
                Says(std::string("model.") + std::string(key).substr(0, 6) + " ... not built"))
        << key;
  }
}

// Keys of both spellings as overrides, and below `tapestry`.
TEST(MindFormers2, OverridesAndOwnKeys) {
  const AllConfig c =
      qwen3("tapestry:\n  training_config:\n    eval_iters: 3\n    seed: 5\n",
            {"model.num_hidden_layers=2", "training.steps=7", "training_config.num_threads=1"});
  EXPECT_EQ(c.model_config.num_layers, 2);
  EXPECT_EQ(c.training_config.training_iters, 7);
  EXPECT_EQ(c.training_config.eval_iters, 3);
  EXPECT_EQ(c.training_config.seed, 5);
  EXPECT_EQ(c.training_config.num_threads, 1);
  EXPECT_THAT(complaint("", {"training.stepz=7"}),
              Says("--set training.stepz=7 ... training.steps"));
  EXPECT_THAT(complaint("tapestry:\n  training_config:\n    sead: 5\n"),
              Says("f.yaml:15:5 ... sead ... seed"));
  const AllConfig own = load(
      "training: {steps: 2}\nlr_scheduler: {type: ConstantWarmUpLR}\ntapestry:\n  model_config:\n"
      "    vocab_size: 32\n    num_layers: 2\n    num_attention_heads: 2\n    hidden_size: 16\n"
      "    ffn_hidden_size: 32\n    seq_length: 8\n");
  EXPECT_EQ(own.model_config.num_layers, 2);
  EXPECT_EQ(own.model_config.normalization, "LayerNorm");
}

TEST(MindFormers2, OtherFilesAreReadAsBefore) {
  EXPECT_THAT(complaints([] {
                load(
                    "training:\n  steps: 3\nmodel_config:\n  vocab_size: 3\n"
                    "training_config:\n  seed: 3\n");
              }),
              Says("unknown section 'training'"));
}

TEST(MindFormers2, PublishedFiles) {
  TempDir dir;
  dir.write("f.yaml", read("deepseek3_1b.yaml"));
  const AllConfig c = init_configs_for_ranks(dir.file("f.yaml"), 8);
  EXPECT_EQ(c.dataset_config.micro_batch_num, 1);
  EXPECT_EQ(c.training_config.training_iters, 10);
  EXPECT_FALSE(c.training_config.resume_training.on);
  EXPECT_EQ(c.model_config.num_layers, 16);
  EXPECT_EQ(c.model_config.params_dtype, kBFloat16);
  EXPECT_EQ(c.model_config.mtp_loss_scaling_factor, 0.3);
  EXPECT_EQ(c.model_config.rotary_config.original_max_position_embeddings, 163840);
  EXPECT_EQ(c.moe_config.num_experts, 8);
  EXPECT_EQ(c.moe_config.moe_shared_expert_intermediate_size, 1024);
  EXPECT_THAT(c.unsupported, IsEmpty());
  const AllConfig small = load(read("qwen3_sections.yaml"));
  EXPECT_EQ(small.dataset_config.micro_batch_num, 2);
  EXPECT_EQ(small.training_config.output_dir, "/path");
  EXPECT_FALSE(small.training_config.profile);
  EXPECT_THAT(small.unsupported, IsEmpty());
}

}  // namespace
}  // namespace tapestry::mindformers2_test

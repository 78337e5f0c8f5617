#include "interop/gguf/gguf_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numbers>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "interop/architectures/gguf_scaling.h"
#include "parallel_core/config/init_configs.h"
#include "tests/golden/gguf_file.h"
#include "tests/message_of.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TransformerConfig model_of(const nlohmann::json& keys, const nlohmann::json& base) {
  nlohmann::json model = {{"num_layers", 1},       {"hidden_size", 32}, {"num_attention_heads", 4},
                          {"ffn_hidden_size", 64}, {"vocab_size", 300}, {"seq_length", 16}};
  model.update(base);
  model.update(keys);
  return init_configs_from_dict({{"training_config", {{"training_iters", 1}}},
                                 {"dataset_config", {{"tokenizer_type", "byte"}}},
                                 {"model_config", model},
                                 {"optimizer_config", {{"learning_rate", 1.0}}}})
      .model_config;
}

TransformerConfig llama_of(const nlohmann::json& keys = nlohmann::json::object()) {
  return model_of(keys, {{"position_embedding_type", "rope"},
                         {"normalization", "RMSNorm"},
                         {"hidden_act", "swiglu"},
                         {"qkv_has_bias", false},
                         {"out_proj_has_bias", false},
                         {"mlp_has_bias", false},
                         {"untie_embeddings_and_output_weights", true}});
}

TransformerConfig gpt2_of(const nlohmann::json& keys = nlohmann::json::object()) {
  return model_of(keys, {{"position_embedding_type", "learned_absolute"},
                         {"normalization", "LayerNorm"},
                         {"hidden_act", "fast_gelu"},
                         {"qkv_has_bias", true},
                         {"out_proj_has_bias", true},
                         {"mlp_has_bias", true}});
}

std::vector<std::string> names_of(const GgufModel& model) {
  std::vector<std::string> names;
  for (const GgufTensor& tensor : model.tensors) {
    names.push_back(tensor.name);
  }
  return names;
}

TEST(GgufModel, LlamaQwen2AndQwen3) {
  const GgufModel llama = gguf_model(llama_of());
  EXPECT_EQ(llama.architecture, "llama");
  EXPECT_THAT(names_of(llama), ::testing::Contains("output.weight"));
  EXPECT_THAT(names_of(llama), ::testing::Not(::testing::Contains("blk.0.attn_q.bias")));
  for (const GgufTensor& tensor : llama.tensors) {
    const bool paired =
        tensor.name == "blk.0.attn_q.weight" || tensor.name == "blk.0.attn_k.weight";
    EXPECT_EQ(tensor.paired_heads, paired ? 4 : 0) << tensor.name;
  }
  EXPECT_EQ(
      gguf_model(llama_of({{"qkv_has_bias", true}, {"out_proj_has_bias", true}})).architecture,
      "llama");

  const GgufModel qwen2 = gguf_model(
      llama_of({{"qkv_has_bias", true}, {"untie_embeddings_and_output_weights", false}}));
  EXPECT_EQ(qwen2.architecture, "qwen2");
  EXPECT_THAT(names_of(qwen2), AllOf(::testing::Contains("blk.0.attn_k.bias"),
                                     ::testing::Not(::testing::Contains("output.weight"))));
  for (const GgufTensor& tensor : qwen2.tensors) {
    EXPECT_EQ(tensor.paired_heads, 0) << tensor.name;
  }
  const GgufModel qwen3 = gguf_model(llama_of({{"qk_layernorm", true}}));
  EXPECT_EQ(qwen3.architecture, "qwen3");
  EXPECT_THAT(names_of(qwen3), ::testing::Contains("blk.0.attn_q_norm.weight"));
}

TEST(GgufModel, Gpt2JoinsQueriesKeysAndValues) {
  const GgufModel model = gguf_model(gpt2_of());
  EXPECT_EQ(model.architecture, "gpt2");
  for (const GgufTensor& tensor : model.tensors) {
    if (tensor.name == "blk.0.attn_qkv.weight") {
      EXPECT_EQ(tensor.shape, (Shape{96, 32}));
      EXPECT_EQ(tensor.logical.size(), 3U);
    }
    const bool vector = tensor.shape.size() == 1 || tensor.name == "position_embd.weight";
    EXPECT_EQ(type_in_file(tensor, GgufType::kQ8_0), vector ? GgufType::kF32 : GgufType::kQ8_0)
        << tensor.name;
  }
}

const GgufTensor& tensor_of(const GgufModel& model, const std::string& name) {
  const auto found = std::find_if(model.tensors.begin(), model.tensors.end(),
                                  [&](const GgufTensor& tensor) { return tensor.name == name; });
  check<ValueError>(found != model.tensors.end(), "no tensor ", name);
  return *found;
}

TEST(GgufModel, APhi3HasTwoFusedMatrices) {
  const GgufModel model = gguf_model(llama_of(
      {{"hf_model_type", "phi3"}, {"num_query_groups", 2}, {"group_query_attention", true}}));
  EXPECT_EQ(model.architecture, "phi3");
  const GgufTensor& qkv = tensor_of(model, "blk.0.attn_qkv.weight");
  EXPECT_EQ(qkv.shape, (Shape{64, 32}));
  EXPECT_THAT(qkv.shapes, ::testing::ElementsAre(Shape{32, 32}, Shape{16, 32}, Shape{16, 32}));
  EXPECT_EQ(tensor_of(model, "blk.0.ffn_up.weight").shape, (Shape{128, 32}));
}

std::map<std::string, testing::GgufValue> metadata_of(const TransformerConfig& config) {
  const data::TempDir folder;
  GgufMetadata metadata;
  add_model_metadata(config, gguf_model(config), "name", GgufType::kF32, metadata);
  GgufWriter(folder.file("f.gguf"), metadata, {}).commit();
  return testing::read_gguf_file(folder.file("f.gguf")).metadata;
}

TEST(GgufModel, MixturesHaveTheirExpertsStacked) {
  TransformerConfig config = llama_of({{"hf_model_type", "qwen3_moe"}, {"qk_layernorm", true}});
  config.moe.num_experts = 3;
  config.moe.moe_router_topk = 2;
  config.moe.moe_ffn_hidden_size = 24;
  config.moe.norm_topk_prob = true;
  const GgufModel model = gguf_model(config);
  EXPECT_EQ(model.architecture, "qwen3moe");
  const GgufTensor& down = tensor_of(model, "blk.0.ffn_down_exps.weight");
  EXPECT_EQ(down.shape, (Shape{3, 32, 24}));
  EXPECT_EQ(down.logical.back(), "layers.0.moe.experts.2.w_down.weight");
  EXPECT_EQ(down.shapes.back(), (Shape{32, 24}));
  EXPECT_TRUE(tensor_of(model, "blk.0.ffn_gate_inp.weight").always_f32);
  EXPECT_THAT(names_of(model), ::testing::Not(::testing::Contains("blk.0.ffn_up.weight")));
}

TEST(GgufModel, GainsLess1GetItBack) {
  const GgufModel model = gguf_model(gpt2_of({{"hf_model_type", "nemotron"},
                                              {"position_embedding_type", "rope"},
                                              {"hidden_act", "squared_relu"},
                                              {"layernorm_zero_centered_gamma", true},
                                              {"untie_embeddings_and_output_weights", true}}));
  EXPECT_EQ(model.architecture, "nemotron");
  EXPECT_EQ(tensor_of(model, "blk.0.attn_norm.weight").added, 1.0F);
  EXPECT_EQ(tensor_of(model, "blk.0.attn_norm.bias").added, 0.0F);
  EXPECT_EQ(tensor_of(model, "output_norm.weight").added, 1.0F);
  EXPECT_EQ(tensor_of(model, "blk.0.ffn_up.weight").added, 0.0F);
}

TEST(GgufModel, AMixtralIsALlamaWithExperts) {
  TransformerConfig config = llama_of();
  config.moe.num_experts = 3;
  config.moe.moe_ffn_hidden_size = 24;
  const GgufModel model = gguf_model(config);
  EXPECT_EQ(model.architecture, "llama");
  EXPECT_EQ(tensor_of(model, "blk.0.ffn_up_exps.weight").shape, (Shape{3, 24, 32}));
  EXPECT_EQ(tensor_of(model, "blk.0.attn_q.weight").paired_heads, 4);
  EXPECT_EQ(metadata_of(config).at("llama.feed_forward_length").as<uint32_t>(), 24U);
}

TEST(GgufModel, ASharedExpertsGateStaysFloat32) {
  TransformerConfig config = llama_of({{"hf_model_type", "qwen2_moe"}, {"qkv_has_bias", true}});
  config.moe.num_experts = 3;
  config.moe.moe_router_pre_softmax = true;
  config.moe.norm_topk_prob = false;
  config.moe.moe_shared_expert_intermediate_size = 40;
  config.moe.use_shared_expert_gating = true;
  const GgufModel model = gguf_model(config);
  EXPECT_EQ(model.architecture, "qwen2moe");
  EXPECT_TRUE(tensor_of(model, "blk.0.ffn_gate_inp_shexp.weight").always_f32);
  EXPECT_EQ(tensor_of(model, "blk.0.ffn_down_shexp.weight").shape, (Shape{32, 40}));
  EXPECT_EQ(metadata_of(config).at("qwen2moe.expert_shared_feed_forward_length").as<uint32_t>(),
            40U);
}

// Of a DeepSeek-V3.
TransformerConfig deepseek_of(const nlohmann::json& keys = nlohmann::json::object()) {
  nlohmann::json model = {{"hf_model_type", "deepseek_v3"},
                          {"multi_latent_attention", true},
                          {"kv_lora_rank", 12},
                          {"q_lora_rank", 20},
                          {"qk_head_dim", 6},
                          {"qk_pos_emb_head_dim", 4},
                          {"v_head_dim", 5},
                          {"norm_epsilon", 1e-6},
                          {"rotary_config", {{"rotary_interleaved", true}}}};
  model.update(keys);
  TransformerConfig config = llama_of(model);
  config.moe.num_experts = 4;
  config.moe.moe_ffn_hidden_size = 24;
  config.moe.moe_shared_expert_intermediate_size = 24;
  config.moe.moe_router_score_function = "sigmoid";
  config.moe.moe_router_enable_expert_bias = true;
  config.moe.norm_topk_prob = true;
  return config;
}

TEST(GgufModel, LatentKeysAndValuesAreTensorsOfTheirOwn) {
  const GgufModel model = gguf_model(deepseek_of());
  EXPECT_EQ(model.architecture, "deepseek2");
  EXPECT_FALSE(model.takes_adapters);
  const GgufTensor& keys = tensor_of(model, "blk.0.attn_k_b.weight");
  EXPECT_EQ(keys.shape, (Shape{4, 12, 6}));
  EXPECT_TRUE(keys.transposed);
  EXPECT_EQ(keys.split_heads, 4);
  EXPECT_EQ(keys.shapes.front(), (Shape{44, 12}));
  const GgufTensor& values = tensor_of(model, "blk.0.attn_v_b.weight");
  EXPECT_EQ(values.shape, (Shape{4, 5, 12}));
  EXPECT_EQ(values.first_row, 6);
  EXPECT_EQ(tensor_of(model, "blk.0.attn_q_b.weight").paired_heads, 0);
  EXPECT_EQ(tensor_of(model, "blk.0.exp_probs_b.bias").shape, Shape{4});
  const auto metadata = metadata_of(deepseek_of());
  const auto count = [&](const std::string& key) {
    return metadata.at("deepseek2." + key).as<uint32_t>();
  };
  EXPECT_EQ(count("attention.head_count_kv"), 1U);
  EXPECT_EQ(count("attention.key_length"), 16U);
  EXPECT_EQ(count("attention.value_length"), 12U);
  EXPECT_EQ(count("attention.key_length_mla"), 10U);
  EXPECT_EQ(count("attention.value_length_mla"), 5U);
  EXPECT_EQ(count("rope.dimension_count"), 4U);
  EXPECT_EQ(count("expert_gating_func"), 2U);
  EXPECT_EQ(count("expert_shared_count"), 1U);
}

// Halves of the turned channels, which come last, become pairs; the other rows stay.
TEST(GgufModel, LatentHalvesBecomePairs) {
  const GgufModel model =
      gguf_model(deepseek_of({{"rotary_config", {{"rotary_interleaved", false}}}}));
  const GgufTensor& queries = tensor_of(model, "blk.0.attn_q_b.weight");
  EXPECT_EQ(queries.paired_heads, 4);
  EXPECT_EQ(queries.unturned, 6);
  const GgufTensor& latent = tensor_of(model, "blk.0.attn_kv_a_mqa.weight");
  EXPECT_EQ(latent.paired_heads, 1);
  EXPECT_EQ(latent.unturned, 12);
  EXPECT_EQ(tensor_of(model, "blk.0.attn_q_a.weight").paired_heads, 0);
  for (int64_t row = 0; row < 20; ++row) {
    const std::vector<int64_t> wanted = {0, 1, 2, 3, 4, 5, 6, 8, 7, 9};
    EXPECT_EQ(pair_rows(row, 4, 6), row / 10 * 10 + wanted[static_cast<size_t>(row % 10)]);
  }
}

TEST(GgufModel, WhatLlamaCppCannotSayOfADeepSeekIsRefused) {
  const auto refused = [](const TransformerConfig& config) {
    return message_of<ValueError>([&] { gguf_model(config); });
  };
  EXPECT_THAT(refused(deepseek_of({{"norm_epsilon", 1e-5}})),
              HasSubstr("model_config.norm_epsilon: is 1e-05; llama.cpp has one for all norms"));
  EXPECT_THAT(refused(deepseek_of({{"q_lora_rank", nullptr}})),
              HasSubstr("model_config.q_lora_rank: is null; llama.cpp wants a number unless"));
  EXPECT_EQ(gguf_model(deepseek_of({{"q_lora_rank", nullptr}, {"num_layers", 27}})).architecture,
            "deepseek2");
  EXPECT_THAT(refused(deepseek_of({{"num_layers", 26}})), HasSubstr("for one with q_proj alone"));
  TransformerConfig none = deepseek_of();
  none.moe.moe_shared_expert_intermediate_size.reset();
  EXPECT_THAT(refused(none), HasSubstr("llama.cpp wants a shared expert"));
  EXPECT_THAT(refused(llama_of({{"hf_model_type", "nanochat"},
                                {"hidden_act", "squared_relu"},
                                {"embedding_norm", true},
                                {"norm_has_gain", false},
                                {"qk_layernorm", true},
                                {"qk_layernorm_after_rotary", true},
                                {"rotary_config", {{"rotary_backward", true}}}})),
              HasSubstr("of the type nanochat: llama.cpp has no architecture whose norms have no "
                        "gains"));
}

TEST(GgufModel, AWindowThatHoldsTheLongestTextIsNone) {
  const nlohmann::json phi3 = {{"hf_model_type", "phi3"}, {"max_position_embeddings", 64}};
  const auto with_window = [&](int64_t before) {
    TransformerConfig config = llama_of(phi3);
    config.window_size = {before, 0};
    return config;
  };
  EXPECT_EQ(gguf_model(with_window(63)).architecture, "phi3");
  EXPECT_THAT(message_of<ValueError>([&] { gguf_model(with_window(62)); }),
              HasSubstr("model_config.window_size: is [62, 0]; windows cannot be said"));
}

TEST(GgufModel, NumbersOfAnActivationAreLists) {
  const TransformerConfig config = llama_of({{"hf_model_type", "apertus"},
                                             {"hidden_act", "xielu"},
                                             {"qk_layernorm", true},
                                             {"num_layers", 2}});
  const GgufModel model = gguf_model(config);
  EXPECT_EQ(model.architecture, "apertus");
  ASSERT_EQ(model.lists.size(), 2U);
  EXPECT_EQ(model.lists.front().key, "xielu.alpha_p");
  EXPECT_THAT(model.lists.back().logical,
              ::testing::ElementsAre("layers.0.feed_forward.alpha_n.weight",
                                     "layers.1.feed_forward.alpha_n.weight"));
  const auto metadata = metadata_of(config);
  EXPECT_EQ(metadata.at("xielu.beta").list<float>(), (std::vector<float>{0.5F, 0.5F}));
  EXPECT_EQ(metadata.at("xielu.eps").list<float>(), (std::vector<float>{-1e-6F, -1e-6F}));
}

// A Helium is what llama.cpp computes of a llama whose rows stay.
TEST(GgufModel, AFamilyWithoutAFormOfItsOwnIsAnImpliedOne) {
  TransformerConfig config = llama_of({{"hf_model_type", "helium"}});
  config.rotary_config.rotary_interleaved = true;
  const GgufModel model = gguf_model(config);
  EXPECT_EQ(model.architecture, "llama");
  EXPECT_EQ(tensor_of(model, "blk.0.attn_q.weight").paired_heads, 0);
}

TEST(GgufModel, RowsThatAreNoBlocksAreF16) {
  const GgufTensor tensor{.name = "w", .shape = {4, 48}};
  EXPECT_EQ(type_in_file(tensor, GgufType::kQ8_0), GgufType::kF16);
  EXPECT_EQ(type_in_file(tensor, GgufType::kBF16), GgufType::kBF16);
}

TEST(GgufModel, RowsOfAHeadArePaired) {
  const std::vector<int64_t> wanted = {0, 4, 1, 5, 2, 6, 3, 7};
  for (int64_t row = 0; row < 16; ++row) {
    EXPECT_EQ(pair_rows(row, 8), row / 8 * 8 + wanted[static_cast<size_t>(row % 8)]);
  }
}

TEST(GgufModel, WhatNoArchitectureSaysIsRefusedWithItsKey) {
  const auto refused = [](const TransformerConfig& config) {
    return message_of<ValueError>([&] { gguf_model(config); });
  };
  EXPECT_THAT(refused(gpt2_of({{"hidden_act", "gelu"}})),
              AllOf(HasSubstr("model_config.hidden_act: is gelu"), HasSubstr("use fast_gelu")));
  EXPECT_THAT(refused(llama_of({{"hidden_act", "gelu"}})),
              AllOf(HasSubstr("model_config.hidden_act: is gelu"), HasSubstr("use swiglu")));
  EXPECT_THAT(refused(gpt2_of({{"normalization", "RMSNorm"}})),
              HasSubstr("model_config.normalization: is RMSNorm"));
  EXPECT_THAT(refused(gpt2_of({{"qkv_has_bias", false}})),
              HasSubstr("model_config.qkv_has_bias: is False"));
  EXPECT_THAT(refused(gpt2_of({{"untie_embeddings_and_output_weights", true}})),
              HasSubstr("model_config.untie_embeddings_and_output_weights: is True"));
  EXPECT_THAT(refused(gpt2_of({{"qk_layernorm", true}})), HasSubstr("model_config.qk_layernorm"));
  EXPECT_THAT(refused(llama_of({{"window_size", {8, 0}}})), HasSubstr("model_config.window_size"));
  EXPECT_THAT(refused(llama_of({{"position_embedding_type", "none"}})),
              HasSubstr("model_config.position_embedding_type: is none"));
  EXPECT_THAT(refused(llama_of({{"use_sandwich_norm", true}})),
              HasSubstr("model_config.norm_placement: is sandwich"));
  EXPECT_THAT(refused(llama_of({{"mlp_has_bias", true}, {"qkv_has_bias", true}})),
              HasSubstr("model_config.mlp_has_bias: is True"));
  EXPECT_THAT(refused(llama_of({{"out_proj_has_bias", true}})),
              HasSubstr("model_config.out_proj_has_bias: is True"));
  TransformerConfig partial = llama_of();
  partial.rotary_config.rotary_percent = 0.5;
  EXPECT_THAT(refused(partial), HasSubstr("model_config.rotary_config.rotary_percent: is 0.5"));
  TransformerConfig extended = llama_of({{"qkv_has_bias", true}});
  extended.rotary_config.rope_type = "llama3";
  EXPECT_THAT(refused(extended), HasSubstr("model_config.rotary_config.rope_type: is llama3"));
  TransformerConfig experts = llama_of();
  experts.moe.num_experts = 4;
  experts.moe.moe_router_pre_softmax = true;
  EXPECT_THAT(refused(experts), HasSubstr("moe_config.moe_router_pre_softmax: is True"));
  // All of them at once.
  EXPECT_THAT(refused(gpt2_of({{"hidden_act", "relu"}, {"normalization", "RMSNorm"}})),
              AllOf(HasSubstr("hidden_act"), HasSubstr("normalization")));
}

TEST(GgufModel, LinearScalingIsSaid) {
  TransformerConfig config = llama_of();
  config.rotary_config.seq_len_interpolation_factor = 4.0;
  const data::TempDir folder;
  GgufMetadata metadata;
  add_model_metadata(config, gguf_model(config), "name", GgufType::kQ8_0, metadata);
  GgufWriter(folder.file("f.gguf"), metadata, {}).commit();
  const testing::GgufFile file = testing::read_gguf_file(folder.file("f.gguf"));
  EXPECT_EQ(file.metadata.at("llama.rope.scaling.type").text(), "linear");
  EXPECT_EQ(file.metadata.at("llama.rope.scaling.factor").as<float>(), 4.0F);
  EXPECT_EQ(file.metadata.at("general.file_type").as<uint32_t>(), 7U);
  EXPECT_EQ(file.metadata.at("general.name").text(), "name");
}

// llama.cpp multiplies cosines and sines by 1 + 0.1 ln(factor) of its own accord.
TEST(GgufModel, YarnIsSaid) {
  TransformerConfig config = llama_of();
  RotaryConfig& rotary = config.rotary_config;
  rotary.rope_type = "yarn";
  rotary.rope_scaling_factor = 4;
  rotary.original_max_position_embeddings = 16;
  auto metadata = metadata_of(config);
  EXPECT_EQ(metadata.at("llama.rope.scaling.type").text(), "yarn");
  EXPECT_EQ(metadata.at("llama.rope.scaling.factor").as<float>(), 4.0F);
  EXPECT_EQ(metadata.at("llama.rope.scaling.original_context_length").as<uint32_t>(), 16U);
  EXPECT_FALSE(metadata.contains("llama.rope.scaling.attn_factor"));
  rotary.attention_factor = 2;
  metadata = metadata_of(config);
  EXPECT_FLOAT_EQ(metadata.at("llama.rope.scaling.attn_factor").as<float>(),
                  static_cast<float>(2 / (1 + 0.1 * std::log(4))));
  const auto refused = [&] { return message_of<ValueError>([&] { gguf_model(config); }); };
  rotary.beta_fast = 16;
  EXPECT_THAT(refused(), HasSubstr("rotary_config.beta_fast: is 16.0; llama.cpp has 32"));
  rotary.beta_fast = 32;
  rotary.truncate = false;
  EXPECT_THAT(architectures::departures_of_scaling(config),
              ::testing::ElementsAre(HasSubstr("rotary_config.truncate is False")));
  rotary.truncate = true;
  rotary.rope_type = "dynamic";
  EXPECT_THAT(refused(),
              HasSubstr("rotary_config.rope_type: is dynamic; use default or yarn or llama3"));
}

// Scores of latent attention grow by the square of 1 + 0.1 mscale_all_dim ln(factor), whatever
// cosines and sines are multiplied by.
TEST(GgufModel, YarnOfLatentAttentionIsSaid) {
  TransformerConfig config = deepseek_of();
  RotaryConfig& rotary = config.rotary_config;
  rotary.rope_type = "yarn";
  rotary.rope_scaling_factor = 4;
  rotary.mscale = 1.0;
  rotary.mscale_all_dim = 1.0;
  auto metadata = metadata_of(config);
  EXPECT_FLOAT_EQ(metadata.at("deepseek2.rope.scaling.yarn_log_multiplier").as<float>(), 0.1F);
  EXPECT_FALSE(metadata.contains("deepseek2.rope.scaling.attn_factor"));
  rotary.mscale = 0.5;
  metadata = metadata_of(config);
  const double growth = 1 + 0.1 * std::log(4);
  const double turns = (1 + 0.05 * std::log(4)) / growth;
  EXPECT_FLOAT_EQ(metadata.at("deepseek2.rope.scaling.attn_factor").as<float>(),
                  static_cast<float>(turns));
  EXPECT_FLOAT_EQ(metadata.at("deepseek2.rope.scaling.yarn_log_multiplier").as<float>(),
                  static_cast<float>((growth / turns - 1) / std::log(4)));
}

TEST(GgufModel, DivisorsOfLongropeAreTensors) {
  TransformerConfig config = llama_of({{"hf_model_type", "phi3"}});
  RotaryConfig& rotary = config.rotary_config;
  rotary.rope_type = "longrope";
  rotary.rope_scaling_factor = 4;
  rotary.original_max_position_embeddings = 16;
  rotary.short_factor = {1.0, 1.5, 2.0, 2.5};
  rotary.long_factor = {2.0, 3.0, 4.0, 5.0};
  const GgufModel model = gguf_model(config);
  EXPECT_EQ(tensor_of(model, "rope_factors_long.weight").values, (std::vector<float>{2, 3, 4, 5}));
  EXPECT_EQ(tensor_of(model, "rope_factors_short.weight").values,
            (std::vector<float>{1, 1.5, 2, 2.5}));
  const auto metadata = metadata_of(config);
  EXPECT_EQ(metadata.at("phi3.rope.scaling.type").text(), "longrope");
  EXPECT_EQ(metadata.at("phi3.rope.scaling.original_context_length").as<uint32_t>(), 16U);
  EXPECT_FALSE(metadata.contains("phi3.rope.scaling.factor"));
  EXPECT_FLOAT_EQ(metadata.at("phi3.rope.scaling.attn_factor").as<float>(),
                  static_cast<float>(std::sqrt(1.5)));
}

// Of a head of 8 channels with base 100, in an original length of 40 tokens: 6.4 turns stay, 2.0
// lie between, 0.64 and 0.20 are divided.
TEST(GgufModel, DivisorsOfFrequenciesAreATensor) {
  TransformerConfig config = llama_of();
  config.rotary_config.rope_type = "llama3";
  config.rotary_config.rotary_base = 100;
  config.rotary_config.original_max_position_embeddings = 40;
  const GgufModel model = gguf_model(config);
  const auto tensor = std::find_if(model.tensors.begin(), model.tensors.end(),
                                   [](const auto& t) { return t.name == "rope_freqs.weight"; });
  ASSERT_NE(tensor, model.tensors.end());
  EXPECT_EQ(tensor->shape, Shape{4});
  EXPECT_EQ(type_in_file(*tensor, GgufType::kQ8_0), GgufType::kF32);
  const double turns = 40 * std::pow(10.0, -0.5) / (2 * std::numbers::pi);
  const double kept = (turns - 1) / 3;
  ASSERT_EQ(tensor->values.size(), 4U);
  EXPECT_EQ(tensor->values[0], 1.0F);
  EXPECT_FLOAT_EQ(tensor->values[1], static_cast<float>(1 / ((1 - kept) / 8 + kept)));
  EXPECT_FLOAT_EQ(tensor->values[2], 8.0F);
  EXPECT_FLOAT_EQ(tensor->values[3], 8.0F);
  const std::vector<std::string> plain = names_of(gguf_model(llama_of()));
  EXPECT_EQ(std::count(plain.begin(), plain.end(), "rope_freqs.weight"), 0);
}

}  // namespace
}  // namespace tapestry

#include "interop/architectures/read_hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "autograd/io/json.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/config/show/render.h"
#include "tests/message_of.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// As the transformers library writes them, small.
Json llama_json() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"bos_token_id", 1},
          {"eos_token_id", 2},
          {"head_dim", 12},
          {"hidden_act", "silu"},
          {"hidden_size", 32},
          {"initializer_range", 0.03},
          {"intermediate_size", 48},
          {"max_position_embeddings", 64},
          {"mlp_bias", false},
          {"num_attention_heads", 4},
          {"num_hidden_layers", 2},
          {"num_key_value_heads", 2},
          {"pretraining_tp", 1},
          {"rms_norm_eps", 1e-5},
          {"rope_scaling", nullptr},
          {"rope_theta", 500000.0},
          {"tie_word_embeddings", true},
          {"torch_dtype", "bfloat16"},
          {"transformers_version", "4.46.0"},
          {"use_cache", true},
          {"vocab_size", 31}};
}
Json mixtral_json() {
  Json json = llama_json();
  for (const char* name : {"attention_bias", "mlp_bias", "pretraining_tp"}) {
    json.erase(name);
  }
  json.update({{"architectures", {"MixtralForCausalLM"}},
               {"model_type", "mixtral"},
               {"num_local_experts", 4},
               {"num_experts_per_tok", 2},
               {"output_router_logits", false},
               {"router_aux_loss_coef", 0.02},
               {"router_jitter_noise", 0.0},
               {"sliding_window", nullptr}});
  return json;
}
Json qwen2_moe_json() {
  Json json = mixtral_json();
  for (const char* name : {"num_local_experts", "router_jitter_noise"}) {
    json.erase(name);
  }
  json.update({{"architectures", {"Qwen2MoeForCausalLM"}},
               {"model_type", "qwen2_moe"},
               {"num_hidden_layers", 4},
               {"num_experts", 6},
               {"num_experts_per_tok", 3},
               {"moe_intermediate_size", 20},
               {"shared_expert_intermediate_size", 40},
               {"norm_topk_prob", false},
               {"decoder_sparse_step", 1},
               {"mlp_only_layers", Json::array()},
               {"use_sliding_window", false},
               {"max_window_layers", 4},
               {"sliding_window", 16}});
  return json;
}
Json changed(Json json, const Json& more) {
  json.update(more);
  return json;
}
Json lacking(Json json, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    json.erase(name);
  }
  return json;
}

HfConfig parsed(const Json& json) { return parse_hf_config(json.dump(), "hf/config.json"); }
std::string refused_text(const Json& json) {
  return message_of<ValueError>([&] { parsed(json); });
}

// The configuration that a run on the folder has.
class FromHf : public ::testing::Test {
 protected:
  std::string folder(const Json& json) const {
    dir_.write("hf/config.json", json.dump(2));
    return dir_.file("hf");
  }
  AllConfig load(const Json& json,
                 const std::string& model_keys = "",
                 const std::vector<std::string>& overrides = {}) const {
    return init_configs_from_text(
        "training_config: {training_iters: 4}\nmodel_config:\n  from_hf: " + folder(json) +
            "\n  seq_length: 16\n" + model_keys,
        "f.yaml", {.overrides = overrides});
  }
  std::string error(const Json& json,
                    const std::string& model_keys = "",
                    const std::vector<std::string>& overrides = {}) const {
    return message_of<ConfigError>([&] { load(json, model_keys, overrides); });
  }

  data::TempDir dir_;
};

TEST_F(FromHf, Llama) {
  const AllConfig config = load(llama_json());
  const TransformerConfig& m = config.model_config;
  EXPECT_EQ(m.vocab_size, 31);
  EXPECT_EQ(m.num_layers, 2);
  EXPECT_EQ(m.hidden_size, 32);
  EXPECT_EQ(m.ffn_hidden_size, 48);
  EXPECT_EQ(m.num_attention_heads, 4);
  EXPECT_TRUE(m.group_query_attention);
  EXPECT_EQ(m.num_query_groups, 2);
  EXPECT_EQ(m.kv_channels, 12);
  EXPECT_EQ(m.seq_length, 16);
  EXPECT_EQ(m.max_position_embeddings, 64);
  EXPECT_EQ(m.position_embedding_type, "rope");
  EXPECT_EQ(m.rotary_config.rotary_base, 5e5);
  EXPECT_EQ(m.rotary_config.seq_len_interpolation_factor, std::nullopt);
  EXPECT_EQ(m.normalization, "RMSNorm");
  EXPECT_EQ(m.norm_epsilon, 1e-5);
  EXPECT_EQ(m.hidden_act, "swiglu");
  EXPECT_FALSE(m.qkv_has_bias || m.out_proj_has_bias || m.mlp_has_bias);
  EXPECT_FALSE(m.untie_embeddings_and_output_weights);
  EXPECT_FALSE(m.window_size.has_value());
  EXPECT_EQ(m.init_method_std, 0.03);
  EXPECT_EQ(m.params_dtype, kFloat32);  // the run's own choice
  EXPECT_EQ(config.training_config.load_checkpoint, dir_.file("hf"));
  EXPECT_THAT(config.unsupported, IsEmpty());
  const HfConfig hf = read_hf_config(dir_.file("hf"));
  EXPECT_EQ(hf.dtype, kBFloat16);
  EXPECT_EQ(hf.token_ids, (TokenIds{.bos = 1, .eos = {2}, .pad = {}}));
}

TEST_F(FromHf, Gpt2) {
  const AllConfig config = load({{"architectures", {"GPT2LMHeadModel"}},
                                 {"model_type", "gpt2"},
                                 {"n_embd", 32},
                                 {"n_layer", 3},
                                 {"n_head", 4},
                                 {"n_inner", nullptr},
                                 {"n_positions", 16},
                                 {"vocab_size", 40},
                                 {"activation_function", "gelu_new"},
                                 {"layer_norm_epsilon", 1e-6},
                                 {"resid_pdrop", 0.2},
                                 {"embd_pdrop", 0.2},
                                 {"attn_pdrop", 0.3}});
  const TransformerConfig& m = config.model_config;
  EXPECT_EQ(m.ffn_hidden_size, 128);
  EXPECT_EQ(m.kv_channels, 8);
  EXPECT_EQ(m.num_query_groups, 4);
  EXPECT_EQ(m.max_position_embeddings, 16);
  EXPECT_EQ(m.position_embedding_type, "learned_absolute");
  EXPECT_EQ(m.normalization, "LayerNorm");
  EXPECT_EQ(m.norm_epsilon, 1e-6);
  EXPECT_EQ(m.hidden_act, "fast_gelu");
  EXPECT_TRUE(m.qkv_has_bias && m.out_proj_has_bias && m.mlp_has_bias);
  EXPECT_FALSE(m.untie_embeddings_and_output_weights);
  EXPECT_EQ(m.hidden_dropout, 0.2);
  EXPECT_EQ(m.attention_dropout, 0.3);
  EXPECT_EQ(read_hf_config(dir_.file("hf")).token_ids,
            (TokenIds{.bos = 50256, .eos = {50256}, .pad = {}}));
}

TEST_F(FromHf, Mixtral) {
  const AllConfig config = load(mixtral_json());
  const TransformerConfig& m = config.model_config;
  EXPECT_EQ(m.ffn_hidden_size, 48);
  EXPECT_FALSE(m.qkv_has_bias || m.out_proj_has_bias || m.mlp_has_bias);
  EXPECT_FALSE(m.window_size.has_value());
  EXPECT_EQ(m.moe.num_experts, 4);
  EXPECT_EQ(m.moe.moe_router_topk, 2);
  EXPECT_EQ(m.moe.moe_ffn_hidden_size, 48);
  EXPECT_TRUE(is_moe_layer(m, 0) && is_moe_layer(m, 1));
  EXPECT_EQ(m.moe.norm_topk_prob, true);  // over all, then divided by the sum: over the chosen
  EXPECT_FALSE(m.moe.moe_router_pre_softmax);
  EXPECT_FALSE(m.moe.moe_shared_expert_intermediate_size.has_value());
  EXPECT_EQ(m.moe.moe_input_jitter_eps, std::nullopt);
  EXPECT_THAT(m.moe.balance_losses, IsEmpty());  // the run's own choice
  const AllConfig window =
      load(changed(mixtral_json(), {{"sliding_window", 8}, {"router_jitter_noise", 0.01}}));
  EXPECT_EQ(window.model_config.window_size, (std::vector<int64_t>{7, 0}));
  EXPECT_EQ(window.model_config.moe.moe_input_jitter_eps, 0.01);
  EXPECT_THAT(resolved_yaml(config), HasSubstr("\n  num_experts: 4  # " + dir_.file("hf") +
                                               "/config.json, num_local_experts\n"));
}

TEST_F(FromHf, Qwen2Moe) {
  const AllConfig config = load(qwen2_moe_json());
  const TransformerConfig& m = config.model_config;
  EXPECT_TRUE(m.qkv_has_bias);
  EXPECT_FALSE(m.out_proj_has_bias || m.mlp_has_bias);
  EXPECT_EQ(m.ffn_hidden_size, 48);
  EXPECT_EQ(m.moe.num_experts, 6);
  EXPECT_EQ(m.moe.moe_router_topk, 3);
  EXPECT_EQ(m.moe.moe_ffn_hidden_size, 20);
  EXPECT_EQ(m.moe.moe_shared_expert_intermediate_size, 40);
  EXPECT_TRUE(m.moe.use_shared_expert_gating);
  EXPECT_TRUE(m.moe.moe_router_pre_softmax);
  EXPECT_EQ(m.moe.norm_topk_prob, false);
  const TransformerConfig normalised =
      load(changed(qwen2_moe_json(), {{"norm_topk_prob", true}})).model_config;
  EXPECT_FALSE(normalised.moe.moe_router_pre_softmax);
  EXPECT_EQ(normalised.moe.norm_topk_prob, true);
}

// Layer i, from 0, has experts if i + 1 is divisible by the step and the layer is no exception.
TEST_F(FromHf, LayersOfQwen2Moe) {
  const auto layers = [&](const Json& more) {
    const TransformerConfig m = load(changed(qwen2_moe_json(), more)).model_config;
    std::string out;
    for (int64_t i = 0; i < m.num_layers; ++i) {
      out += is_moe_layer(m, i) ? '1' : '0';
    }
    return out;
  };
  EXPECT_EQ(layers(Json::object()), "1111");
  EXPECT_EQ(layers({{"decoder_sparse_step", 2}}), "0101");
  EXPECT_EQ(layers({{"decoder_sparse_step", 3}}), "0010");
  EXPECT_EQ(layers({{"mlp_only_layers", {0, 2}}}), "0101");
  EXPECT_EQ(layers({{"decoder_sparse_step", 2}, {"mlp_only_layers", {3, 9}}}), "0100");
  EXPECT_EQ(layers({{"mlp_only_layers", nullptr}}), "1111");
}

TEST_F(FromHf, ExpertsThatAreGivenAsWell) {
  load(mixtral_json(),
       "moe_config:\n  num_experts: 4\n  moe_aux_loss_coeff: 0.1\n"
       "  moe_router_load_balancing_type: aux_loss\n  capacity_factor: 1.5\n"
       "  moe_input_jitter_eps: 0.1\n");
  const std::string file = dir_.file("hf") + "/config.json";
  EXPECT_THAT(error(mixtral_json(), "moe_config:\n  num_experts: 8\n  num_experts_per_tok: 3\n"),
              ::testing::AllOf(
                  HasSubstr("f.yaml:6:16: moe_config.num_experts: is 8, but num_local_experts of " +
                            file + " is 4; leave the key out"),
                  HasSubstr("f.yaml:7:24: moe_config.moe_router_topk: is 3, but "
                            "num_experts_per_tok of " +
                            file + " is 2")));
  EXPECT_THAT(error(qwen2_moe_json(), "moe_config:\n  first_k_dense_replace: 1\n"),
              HasSubstr("moe_config.first_k_dense_replace is 1, but decoder_sparse_step of " +
                        file + " is 1, that is moe_layer_freq: [1]"));
  EXPECT_THAT(error(qwen2_moe_json(), "moe_config:\n  shared_expert_num: 1\n"),
              HasSubstr("moe_config.moe_shared_expert_intermediate_size is 20, but "
                        "shared_expert_intermediate_size of"));
  EXPECT_EQ(load(changed(qwen2_moe_json(), {{"mlp_only_layers", {0}}}),
                 "moe_config:\n  first_k_dense_replace: 1\n")
                .moe_config.first_k_dense_replace,
            1);
  // A dense model has none, unless they are made of it.
  EXPECT_THAT(error(llama_json(), "moe_config:\n  num_experts: 4\n"),
              ::testing::AllOf(HasSubstr("moe_config.num_experts: is 4, but model_type of " + file +
                                         " is \"llama\", that is num_experts: 1"),
                               HasSubstr("moe_config.upcycle_from")));
}

TEST_F(FromHf, UpcyclingTakesTheRestFromTheDenseModel) {
  const std::string dense = folder(llama_json());
  const AllConfig config =
      load(llama_json(), "moe_config:\n  num_experts: 4\n  upcycle_from: " + dense + "\n");
  EXPECT_EQ(config.model_config.moe.num_experts, 4);
  EXPECT_EQ(config.model_config.moe.moe_ffn_hidden_size, 48);
  EXPECT_EQ(config.model_config.norm_epsilon, 1e-5);
  EXPECT_EQ(config.training_config.load_checkpoint, "");
  EXPECT_EQ(start_weights(config).path, dense);
  EXPECT_TRUE(start_weights(config).dense);
}

TEST_F(FromHf, WhatTheFileLeavesOutIsThatOfTheType) {
  const Json bare = {{"model_type", "gpt2"}};
  TransformerConfig m = load(bare).model_config;
  EXPECT_EQ(std::make_tuple(m.vocab_size, m.hidden_size, m.num_layers, m.num_attention_heads,
                            m.ffn_hidden_size, *m.max_position_embeddings),
            std::make_tuple(50257, 768, 12, 12, 3072, 1024));
  EXPECT_EQ(m.norm_epsilon, 1e-5);
  EXPECT_EQ(m.hidden_dropout, 0.1);
  m = load({{"model_type", "llama"}}).model_config;
  EXPECT_EQ(std::make_tuple(m.vocab_size, m.hidden_size, m.num_layers, m.num_attention_heads,
                            m.ffn_hidden_size, *m.max_position_embeddings, m.num_query_groups,
                            *m.kv_channels),
            std::make_tuple(32000, 4096, 32, 32, 11008, 2048, 32, 128));
  EXPECT_EQ(m.norm_epsilon, 1e-6);
  EXPECT_EQ(m.rotary_config.rotary_base, 10000.0);
  EXPECT_TRUE(m.untie_embeddings_and_output_weights);
  m = load({{"model_type", "mistral"}}).model_config;
  EXPECT_EQ(m.num_query_groups, 8);
  EXPECT_EQ(m.window_size, (std::vector<int64_t>{4095, 0}));
  m = load({{"model_type", "qwen2"}, {"num_attention_heads", 16}}).model_config;
  EXPECT_EQ(m.vocab_size, 151936);
  EXPECT_EQ(m.num_query_groups, 16);
  EXPECT_TRUE(m.qkv_has_bias);
  EXPECT_FALSE(m.out_proj_has_bias);
  EXPECT_FALSE(m.window_size.has_value());
  EXPECT_THAT(parsed({{"model_type", "qwen2"}}).token_ids.eos, IsEmpty());
  m = load({{"model_type", "mixtral"}}).model_config;
  EXPECT_EQ(std::make_tuple(m.vocab_size, m.hidden_size, m.num_layers, m.num_attention_heads,
                            *m.moe.moe_ffn_hidden_size, *m.max_position_embeddings,
                            m.num_query_groups, m.moe.num_experts, m.moe.moe_router_topk),
            std::make_tuple(32000, 4096, 32, 32, 14336, 131072, 8, 8, 2));
  EXPECT_EQ(m.norm_epsilon, 1e-5);
  EXPECT_EQ(m.rotary_config.rotary_base, 1e6);
  EXPECT_FALSE(m.window_size.has_value());
  m = load({{"model_type", "qwen2_moe"}}).model_config;
  EXPECT_EQ(std::make_tuple(m.vocab_size, m.hidden_size, m.num_layers, m.num_attention_heads,
                            m.ffn_hidden_size, *m.max_position_embeddings, m.num_query_groups,
                            m.moe.num_experts, m.moe.moe_router_topk, *m.moe.moe_ffn_hidden_size,
                            *m.moe.moe_shared_expert_intermediate_size),
            std::make_tuple(151936, 2048, 24, 16, 5632, 32768, 16, 60, 4, 1408, 5632));
  EXPECT_TRUE(m.moe.moe_router_pre_softmax);
  // The name of the class alone, as in old files.
  EXPECT_EQ(parsed({{"architectures", {"Qwen2ForCausalLM"}}}).model_type, "qwen2");
}

TEST_F(FromHf, SpellingsOfOtherWriters) {
  const Json newer = changed(
      lacking(llama_json(), {"rope_theta", "rope_scaling", "torch_dtype"}),
      {{"dtype", "float16"}, {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7e4}}}});
  EXPECT_EQ(load(newer).model_config.rotary_config.rotary_base, 7e4);
  EXPECT_EQ(parsed(newer).dtype, kFloat16);
  for (const char* type : {"type", "rope_type"}) {
    const Json linear =
        changed(llama_json(), {{"rope_scaling", {{type, "linear"}, {"factor", 4.0}}}});
    EXPECT_EQ(load(linear).model_config.rotary_config.seq_len_interpolation_factor, 4.0);
  }
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 32.0},
                       {"low_freq_factor", 1.5},
                       {"high_freq_factor", 4.5},
                       {"original_max_position_embeddings", 4096}};
  const RotaryConfig extended{.rotary_base = 5e5,
                              .rope_type = "llama3",
                              .rope_scaling_factor = 32.0,
                              .original_max_position_embeddings = 4096,
                              .low_freq_factor = 1.5,
                              .high_freq_factor = 4.5};
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    EXPECT_EQ(load(changed(lacking(llama_json(), {"rope_scaling"}), {{name, llama3}}))
                  .model_config.rotary_config,
              extended)
        << name;
  }
  EXPECT_EQ(load(changed(llama_json(), {{"num_key_value_heads", nullptr}, {"head_dim", nullptr}}))
                .model_config.kv_channels,
            8);
  const TransformerConfig biased =
      load(changed(llama_json(), {{"attention_bias", true}, {"mlp_bias", true}})).model_config;
  EXPECT_TRUE(biased.qkv_has_bias && biased.out_proj_has_bias && biased.mlp_has_bias);
  EXPECT_THAT(parsed(changed(llama_json(), {{"eos_token_id", {7, 9}}})).token_ids.eos,
              ElementsAre(7, 9));
  EXPECT_EQ(parsed(changed(llama_json(), {{"bos_token_id", nullptr}})).token_ids.bos, std::nullopt);
}

TEST_F(FromHf, WhatAsksForNothing) {
  for (const Json& asked :
       {Json(nullptr), Json::object(),
        Json{{"quant_method", "bitsandbytes"}, {"load_in_4bit", false}, {"load_in_8bit", false}},
        Json{{"quant_method", "compressed-tensors"}, {"config_groups", Json::object()}}}) {
    EXPECT_EQ(load(changed(llama_json(), {{"quantization_config", asked}})).model_config.num_layers,
              2)
        << asked;
  }
  EXPECT_EQ(
      load(changed(llama_json(), {{"architectures", {"LlamaModel"}}})).model_config.num_layers, 2);
}

TEST_F(FromHf, Windows) {
  const Json qwen2 = changed(lacking(llama_json(), {"attention_bias", "mlp_bias", "architectures"}),
                             {{"model_type", "qwen2"}, {"sliding_window", 8}});
  const auto window = [&](const Json& more) {
    return load(changed(qwen2, more)).model_config.window_size;
  };
  EXPECT_EQ(window({{"use_sliding_window", false}}), std::nullopt);
  EXPECT_EQ(window({{"use_sliding_window", true}, {"max_window_layers", 2}}), std::nullopt);
  EXPECT_EQ(window({{"use_sliding_window", true}, {"max_window_layers", 0}}),
            (std::vector<int64_t>{7, 0}));
  EXPECT_EQ(window({{"use_sliding_window", true},
                    {"layer_types", {"sliding_attention", "sliding_attention"}}}),
            (std::vector<int64_t>{7, 0}));
  const std::vector<std::string> mixed = {"full_attention", "sliding_attention"};
  for (const Json& more : {Json{{"use_sliding_window", true}, {"max_window_layers", 1}},
                           Json{{"use_sliding_window", true}, {"layer_types", mixed}}}) {
    const TransformerConfig model = load(changed(qwen2, more)).model_config;
    EXPECT_EQ(model.window_size, (std::vector<int64_t>{7, 0}));
    EXPECT_EQ(model.layer_types, mixed);
  }
  EXPECT_THAT(refused_text(changed(qwen2, {{"layer_types", mixed}})),
              HasSubstr("layer_types: layer 1 is of the kind sliding_attention"));
  EXPECT_THAT(refused_text(changed(llama_json(), {{"sliding_window", 8}})),
              HasSubstr("sliding_window"));
  const Json mistral =
      changed(lacking(llama_json(), {"architectures"}), {{"model_type", "mistral"}});
  EXPECT_EQ(load(changed(mistral, {{"sliding_window", nullptr}})).model_config.window_size,
            std::nullopt);
  EXPECT_EQ(load(changed(mistral, {{"sliding_window", 1}})).model_config.window_size,
            (std::vector<int64_t>{0, 0}));
}

TEST(ReadHfConfig, WhatIsNotBuiltIsRefusedByItsName) {
  const Json gpt2 = {{"model_type", "gpt2"}};
  const std::vector<std::tuple<Json, std::string, std::string>> cases = {
      {{{"model_type", "phimoe"}}, "phimoe", "cannot be read; what can"},
      {changed(mixtral_json(), {{"num_local_experts", 1}}), "num_local_experts", "2 or more"},
      {changed(mixtral_json(), {{"num_experts_per_tok", 5}}), "num_experts_per_tok",
       "5 of num_local_experts 4"},
      {changed(mixtral_json(), {{"router_jitter_noise", 1.5}}), "router_jitter_noise",
       "expected a number in ... [0, 1)"},
      {changed(mixtral_json(), {{"hidden_act", "gelu"}}), "hidden_act", "\"gelu\" is not built"},
      {changed(qwen2_moe_json(), {{"mlp_only_layers", {0, "x"}}}), "mlp_only_layers",
       "list of layers"},
      {changed(qwen2_moe_json(), {{"mlp_only_layers", {0, 1, 2, 3}}}), "mlp_only_layers",
       "no layer of 4 has experts"},
      {changed(qwen2_moe_json(), {{"decoder_sparse_step", 5}}), "decoder_sparse_step",
       "no layer of 4 has experts"},
      {changed(qwen2_moe_json(), {{"decoder_sparse_step", 0}}), "decoder_sparse_step", "got 0"},
      {changed(qwen2_moe_json(), {{"qkv_bias", false}}), "qkv_bias", "not supported"},
      {{{"model_type", "qwen3_5"}}, "qwen3_5", "cannot be read; what can"},
      {changed(llama_json(), {{"quantization_config", {{"quant_method", "gptq"}, {"bits", 4}}}}),
       "quantization_config", "quantised (by \"gptq\")"},
      {changed(llama_json(), {{"quantization_config", {{"load_in_4bit", true}}}}),
       "quantization_config", "not supported"},
      {changed(llama_json(), {{"quantization_config", 4}}), "quantization_config",
       "expected an object"},
      {{{"model_type", "mamba2"}}, "mamba2", "what can: llama, mistral, "},
      {{{"architectures", {"OPTForCausalLM"}}}, "OPTForCausalLM", "cannot be read"},
      {Json::object(), "no model_type", "cannot be read"},
      {changed(llama_json(), {{"architectures", {"LlamaForTokenClassification"}}}),
       "architectures: LlamaForTokenClassification", "LlamaForCausalLM"},
      {changed(llama_json(), {{"hidden_act", "gelu"}}), "hidden_act", "\"gelu\" is not built"},
      {changed(gpt2, {{"activation_function", "mish"}}), "activation_function",
       "\"mish\" is not built"},
      {changed(llama_json(), {{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}}}),
       "rope_scaling", "beside ... rope_type llama3,"},
      {changed(llama_json(), {{"rope_scaling",
                               {{"rope_type", "llama3"},
                                {"factor", 8.0},
                                {"low_freq_factor", 4.0},
                                {"high_freq_factor", 4.0},
                                {"original_max_position_embeddings", 8192}}}}),
       "rope_scaling", "high_freq_factor 4 ... above low_freq_factor"},
      {changed(llama_json(), {{"rope_parameters", {{"rope_type", "ntk"}}}}), "rope_parameters",
       "\"ntk\""},
      {changed(llama_json(), {{"rope_scaling", {{"factor", 8.0}}}}), "rope_scaling",
       "expected a rope_type"},
      {changed(llama_json(), {{"rope_scaling", {{"type", "linear"}}}}), "rope_scaling",
       "expected a number factor"},
      {changed(llama_json(), {{"rope_parameters", {{"rope_theta", 1.0}}}}), "rope_parameters",
       "but rope_theta is 500000.0"},
      {changed(llama_json(), {{"partial_rotary_factor", 0.5}}), "partial_rotary_factor",
       "turn all channels"},
      {changed(llama_json(), {{"quantization_config", {{"bits", 4}}}}), "quantization_config",
       "quantised"},
      {changed(llama_json(), {{"torch_dtype", "int8"}}), "torch_dtype", "unknown dtype \"int8\""},
      {changed(llama_json(), {{"dtype", "float32"}}), "dtype", "torch_dtype is \"bfloat16\""},
      {changed(gpt2, {{"scale_attn_weights", false}}), "scale_attn_weights", "not supported"},
      {changed(gpt2, {{"scale_attn_by_inverse_layer_idx", true}}),
       "scale_attn_by_inverse_layer_idx", "not supported"},
      {changed(gpt2, {{"n_head", 5}}), "n_head", "5 does not divide n_embd 768"},
      {changed(llama_json(), {{"num_key_value_heads", 3}}), "num_key_value_heads",
       "does not divide"},
      {changed(llama_json(), {{"hidden_size", "32"}}), "hidden_size",
       "expected an integer above 0, got \"32\""},
      {changed(llama_json(), {{"hidden_size", -1}}), "hidden_size", "got -1"},
      {changed(llama_json(), {{"rms_norm_eps", true}}), "rms_norm_eps", "expected a number"},
      {changed(llama_json(), {{"tie_word_embeddings", 1}}), "tie_word_embeddings", "true or false"},
      {changed(llama_json(), {{"eos_token_id", {1, "x"}}}), "eos_token_id", "list of ids"},
  };
  for (const auto& [json, name, text] : cases) {
    const std::string message = refused_text(json);
    EXPECT_THAT(message, HasSubstr("hf/config.json: ")) << json;
    EXPECT_THAT(message, Says(name)) << json;
    EXPECT_THAT(message, Says(text)) << json;
  }
  // All findings at once.
  const std::string both =
      refused_text(changed(llama_json(), {{"hidden_act", "gelu"}, {"hidden_size", "x"}}));
  EXPECT_THAT(both, HasSubstr("hidden_act"));
  EXPECT_THAT(both, HasSubstr("hidden_size"));
}

TEST(ReadHfConfig, WhatIsNoJson) {
  const auto message = [](const std::string& text) {
    return message_of<IoError>([&] { parse_hf_config(text, "hf/config.json"); });
  };
  EXPECT_THAT(message(""), HasSubstr("hf/config.json: is no JSON"));
  EXPECT_THAT(message("{\"a\": 1} x"), HasSubstr("is no JSON"));
  EXPECT_THAT(message("{\"a\": NaN}"), HasSubstr("is no JSON"));
  EXPECT_THAT(message("{\"a\": 1, // remark\n \"b\": 2}"), HasSubstr("is no JSON"));
  EXPECT_THAT(message("[1]"), HasSubstr("expected a JSON object, got array"));
  EXPECT_THAT(message("{\"a\": 1, \"a\": 1}"), HasSubstr("the key \"a\" is given twice"));
  EXPECT_THAT(message("{\"x\": {\"a\": 1, \"a\": 2}}"), HasSubstr("the key \"a\" is given twice"));
  EXPECT_THAT(message(std::string(100000, '[')), HasSubstr("nested deeper"));
  EXPECT_THAT(message_of<IoError>([] { read_hf_config("no/such"); }), HasSubstr("no/such: there"));
  const data::TempDir dir;
  EXPECT_THAT(message_of<IoError>([&] { read_hf_config(dir.path()); }),
              HasSubstr("config.json: cannot be read"));
}

TEST_F(FromHf, KeysThatAreGivenAsWell) {
  // What agrees, and what the file has no say in.
  const AllConfig config = load(llama_json(),
                                "  hidden_size: 32\n  rotary_base: 5e5\n  norm_epsilon: 0.00001\n"
                                "  add_bias_linear: False\n  num_query_groups: 2\n"
                                "  untie_embeddings_and_output_weights: False\n"
                                "  init_method_std: 0.5\n  attention_dropout: 0.25\n"
                                "  compute_dtype: bfloat16\n");
  EXPECT_EQ(config.model_config.init_method_std, 0.5);
  EXPECT_EQ(config.model_config.attention_dropout, 0.25);
  EXPECT_FALSE(config.model_config.mlp_has_bias);
  EXPECT_EQ(load(llama_json(), "  fa_config: {keep_prob: 0.75}\n").model_config.attention_dropout,
            0.25);

  const std::string message =
      error(llama_json(), "  rotary_base: 10000\n  hidden_size: 64\n  norm_epsilon: 1e-6\n",
            {"model_config.untie_embeddings_and_output_weights=True"});
  const std::string file = dir_.file("hf") + "/config.json";
  EXPECT_THAT(message, HasSubstr("f.yaml:5:16: model_config.rotary_config.rotary_base: is 10000.0, "
                                 "but rope_theta of " +
                                 file + " is 500000.0; leave the key out"));
  EXPECT_THAT(message,
              HasSubstr("f.yaml:6:16: model_config.hidden_size: is 64, but hidden_size of " + file +
                        " is 32"));
  EXPECT_THAT(message,
              HasSubstr("norm_epsilon: is 1e-06, but rms_norm_eps of " + file + " is 1e-05"));
  EXPECT_THAT(message, HasSubstr("--set model_config.untie_embeddings_and_output_weights=True: "
                                 "model_config.untie_embeddings_and_output_weights: is True, but "
                                 "tie_word_embeddings of " +
                                 file +
                                 " is true, that is "
                                 "untie_embeddings_and_output_weights: False"));
  EXPECT_THAT(message, Not(HasSubstr("required")));
  EXPECT_THAT(error(lacking(llama_json(), {"rms_norm_eps"}), "  norm_epsilon: 1e-5\n"),
              HasSubstr("rms_norm_eps of " + file + ", which leaves it out, is 1e-06"));
  // Keys that others stand for.
  EXPECT_THAT(error(llama_json(), "  add_bias_linear: True\n"),
              HasSubstr("model_config.qkv_has_bias is True, but attention_bias"));
  EXPECT_THAT(error(llama_json(), "  fa_config: {pre_tokens: 3}\n"),
              HasSubstr("model_config.window_size is [3, 0], but sliding_window"));
  EXPECT_THAT(error(llama_json(), "  group_query_attention: False\n"),
              HasSubstr("num_query_groups is 4, but num_key_value_heads of"));
  EXPECT_THAT(error(llama_json(), "", {"model_config.seq_length=65"}),
              HasSubstr("model_config.seq_length is 65, but max_position_embeddings of " + file +
                        " is 64"));
}

TEST_F(FromHf, FoldersThatCannotBeTaken) {
  EXPECT_THAT(message_of<ConfigError>([] {
                init_configs_from_text(
                    "training_config: {training_iters: 1}\n"
                    "model_config: {from_hf: none, seq_length: 4}\n",
                    "f.yaml");
              }),
              ::testing::StartsWith("f.yaml:2:25: model_config.from_hf: none: there is no such "
                                    "folder"));
  EXPECT_THAT(error({{"model_type", "mamba2"}}), HasSubstr("mamba2"));
  EXPECT_THAT(error({{"model_type", "tapestry"}, {"hidden_size", 32}}),
              Says("not describe its model"));
  const Json two = {{"model_type", "gpt2"}, {"embd_pdrop", 0.0}};
  EXPECT_THAT(error(two), HasSubstr("model_config.hidden_dropout: resid_pdrop of"));
  EXPECT_EQ(load(two, "  hidden_dropout: 0.1\n").model_config.hidden_dropout, 0.1);
}

TEST_F(FromHf, WeightsToStartFrom) {
  EXPECT_EQ(load(llama_json(), "", {"training_config.load_checkpoint=other"})
                .training_config.load_checkpoint,
            "other");
  EXPECT_EQ(load(llama_json(), "", {"training_config.load_checkpoint=\"\""})
                .training_config.load_checkpoint,
            "");
}

TEST_F(FromHf, TheResolvedConfigurationStandsAlone) {
  const AllConfig config = load(llama_json());
  const std::string text = resolved_yaml(config);
  const std::string file = dir_.file("hf") + "/config.json";
  EXPECT_THAT(text, HasSubstr("\n  from_hf: null  # was " + dir_.file("hf") + ", f.yaml:3\n"));
  EXPECT_THAT(text, HasSubstr("\n    rotary_base: 5e+05  # " + file + ", rope_theta\n"));
  EXPECT_THAT(text, HasSubstr("\n  load_checkpoint: " + dir_.file("hf") +
                              "  # derived from model_config.from_hf\n"));
  EXPECT_THAT(resolved_yaml(load(lacking(llama_json(), {"rope_theta"}))),
              HasSubstr("rotary_base: 10000.0  # " + file + ", rope_theta by default\n"));
  std::filesystem::remove_all(dir_.file("hf"));
  AllConfig again = init_configs_from_text(text, "config.yaml");
  again.model_config.from_hf = config.model_config.from_hf;
  EXPECT_TRUE(again.same_values(config));
}

TEST_F(FromHf, InCppAndCompletedTwice) {
  AllConfig config;
  config.training_config.training_iters = 2;
  config.model_config.from_hf = folder(llama_json());
  config.model_config.seq_length = 8;
  resolve(config);
  EXPECT_EQ(config.model_config.rotary_config.rotary_base, 5e5);
  const std::string before = resolved_yaml(config);
  resolve(config);
  EXPECT_EQ(resolved_yaml(config), before);
  config.model_config.num_layers = 3;
  EXPECT_THAT(message_of<ConfigError>([&] { resolve(config); }),
              HasSubstr("model_config.num_layers: is 3, but num_hidden_layers of"));
}

TEST_F(FromHf, FromAnotherSourceThanYaml) {
  const AllConfig config = init_configs_from_args(
      {"--from_hf", folder(llama_json()), "--seq-length", "16", "--train-iters", "2"});
  EXPECT_EQ(config.model_config.num_layers, 2);
  EXPECT_EQ(
      init_configs_from_dict({{"training_config", {{"training_iters", 2}}},
                              {"model_config", {{"from_hf", dir_.file("hf")}, {"seq_length", 16}}}})
          .model_config.rotary_config.rotary_base,
      5e5);
}

// Files come from elsewhere: whatever is wrong with one, it is an error in words.
TEST(ReadHfConfig, DamagedFilesAreErrors) {
  const std::string text =
      changed(llama_json(), {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}},
                             {"layer_types", {"full_attention", "full_attention"}}})
          .dump();
  EXPECT_NO_THROW(parse_hf_config(text, "config.json"));
  std::mt19937 random(7);
  int read = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string damaged = text;
    for (uint32_t j = 0; j <= random() % 3; ++j) {
      const size_t at = random() % damaged.size();
      switch (random() % 4) {
        case 0:
          damaged[at] = static_cast<char>(random() % 256);
          break;
        case 1:
          damaged.erase(at, random() % 8);
          break;
        case 2:
          damaged.insert(at, damaged.substr(random() % damaged.size(), random() % 20));
          break;
        default:
          damaged.resize(std::max<size_t>(1, at));
      }
    }
    try {
      parse_hf_config(damaged, "config.json");
      ++read;
    } catch (const IoError&) {
    } catch (const ValueError&) {
    }
  }
  EXPECT_LT(read, 3000);
}

TEST(HfDifferences, AreTheKeysThatSayWhatTheWeightsAreOf) {
  const std::string yaml =
      "training_config: {training_iters: 4}\nmodel_config:\n  vocab_size: 31\n  num_layers: 2\n"
      "  num_attention_heads: 4\n  hidden_size: 32\n  ffn_hidden_size: 48\n  seq_length: 16\n"
      "  kv_channels: 12\n  group_query_attention: True\n  num_query_groups: 2\n"
      "  position_embedding_type: rope\n  rotary_base: 5e5\n  normalization: RMSNorm\n"
      "  hidden_act: swiglu\n  add_bias_linear: False\n";
  const auto found = [&](const std::vector<std::string>& overrides) {
    return differences(
        init_configs_from_text(yaml, "f.yaml", {.overrides = overrides}).model_config,
        parsed(llama_json()));
  };
  EXPECT_THAT(found({}), IsEmpty());
  EXPECT_THAT(found({"model_config.hidden_dropout=0.1", "model_config.init_method_std=1",
                     "training_config.bf16=True", "model_config.max_position_embeddings=64"}),
              IsEmpty());
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"vocab_size=32", "vocab_size is 32, but vocab_size of hf/config.json is 31"},
      {"num_layers=3", "num_hidden_layers of hf/config.json is 2"},
      {"hidden_size=48", "hidden_size of hf/config.json is 32"},
      {"ffn_hidden_size=64", "intermediate_size of hf/config.json is 48"},
      {"kv_channels=8", "head_dim of hf/config.json is 12"},
      {"num_query_groups=4", "num_key_value_heads of hf/config.json is 2"},
      {"rotary_base=1e4", "rope_theta of hf/config.json is 500000.0"},
      {"norm_epsilon=1e-6", "rms_norm_eps of hf/config.json is 1e-05"},
      {"rotary_config.seq_len_interpolation_factor=2", "rope_scaling of hf/config.json is null"},
      {"rotary_config.rope_type=llama3", "rope_type is llama3, but rope_scaling of hf/config.json"},
      {"untie_embeddings_and_output_weights=True",
       "tie_word_embeddings of hf/config.json is true, that is "
       "untie_embeddings_and_output_weights: False"},
      {"window_size=[3, 0]", "sliding_window of hf/config.json"},
      {"qkv_has_bias=True", "attention_bias of hf/config.json is false"},
      {"mlp_has_bias=True", "mlp_bias of hf/config.json is false"},
      {"seq_length=80", "max_position_embeddings of hf/config.json is 64"},
      {"max_position_embeddings=32", "max_position_embeddings of hf/config.json is 64"},
      {"qk_layernorm=True", "model_type of hf/config.json is \"llama\""},
      {"hidden_act=silu", "hidden_act of hf/config.json is \"silu\", that is hidden_act: swiglu"},
      {"normalization=LayerNorm", "model_type of hf/config.json"},
  };
  for (const auto& [override, text] : cases) {
    const std::vector<std::string> lines = found({std::string("model_config.") + override});
    ASSERT_EQ(lines.size(), 1U) << override << ": " << ::testing::PrintToString(lines);
    EXPECT_THAT(lines[0], Says(text));
    EXPECT_THAT(lines[0], HasSubstr("model_config.")) << override;
  }
  EXPECT_EQ(found({"model_config.num_layers=3", "model_config.rotary_base=1e4"}).size(), 2U);
  EXPECT_THAT(found({"moe_config.num_experts=4", "moe_config.moe_router_topk=3"}),
              ElementsAre(HasSubstr("moe_config.num_experts is 4, but model_type of hf/config.json "
                                    "is \"llama\", that is num_experts: 1")));
}

TEST_F(FromHf, DifferencesOfExperts) {
  const TransformerConfig same = load(qwen2_moe_json()).model_config;
  const auto found = [&](const Json& more, const std::function<void(MoEConfig&)>& change = {}) {
    TransformerConfig config = same;
    if (change) {
      change(config.moe);
    }
    return differences(config, parsed(changed(qwen2_moe_json(), more)));
  };
  EXPECT_THAT(found(Json::object()), IsEmpty());
  // All layers have experts: that of the dense ones is nothing.
  EXPECT_THAT(found({{"intermediate_size", 7}}), IsEmpty());
  EXPECT_THAT(found({{"router_aux_loss_coef", 0.5}},
                    [](MoEConfig& moe) {
                      moe.moe_expert_capacity_factor = 1.5;
                      moe.moe_z_loss_coeff = 0.1;
                      moe.moe_layer_freq = {1, 1, 1, 1};
                    }),
              IsEmpty());
  const std::vector<std::pair<Json, const char*>> cases = {
      {{{"num_experts", 8}}, "moe_config.num_experts is 6, but num_experts of"},
      {{{"num_experts_per_tok", 2}}, "moe_config.moe_router_topk is 3, but num_experts_per_tok of"},
      {{{"moe_intermediate_size", 8}}, "moe_config.moe_ffn_hidden_size is 20, but"},
      {{{"shared_expert_intermediate_size", 8}},
       "moe_config.moe_shared_expert_intermediate_size is 40, but"},
      {{{"mlp_only_layers", {1}}},
       "moe_config.moe_layer_freq is [1], but mlp_only_layers of hf/config.json is [1], that is "
       "moe_layer_freq: [1, 0, 1, 1]"}};
  for (const auto& [more, text] : cases) {
    EXPECT_THAT(found(more), ElementsAre(Says(text)));
  }
  EXPECT_THAT(found({{"norm_topk_prob", true}}),
              ElementsAre(HasSubstr("moe_config.norm_topk_prob is False, but norm_topk_prob of"),
                          HasSubstr("moe_config.moe_router_pre_softmax is True, but "
                                    "norm_topk_prob of")));
  EXPECT_THAT(found(Json::object(), [](MoEConfig& moe) { moe = {}; }),
              ElementsAre(HasSubstr("moe_config.num_experts is 1, but num_experts of")));
}

}  // namespace
}  // namespace tapestry

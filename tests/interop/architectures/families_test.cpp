// Each family, from a small config.json to a configuration and back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "autograd/io/json.h"
#include "interop/architectures/file_place.h"
#include "interop/architectures/hf_folder.h"
#include "interop/architectures/hf_names.h"
#include "interop/architectures/read_hf_config.h"
#include "interop/architectures/registry.h"
#include "parallel_core/config/init_configs.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Family {
  std::string type;
  Json members;       // beside the sizes that all have
  std::string gguf;   // its architecture; empty: this model is not written as GGUF
  std::string names;  // of a tensor of its files
  /// layer_types, where a window is that of some layers.
  std::vector<std::string> kinds = {};
};

const std::string kSliding = "sliding_attention";
const std::string kFull = "full_attention";
const std::string kLinear = "linear_attention";

std::vector<Family> families() {
  const std::string llama = "model.layers.0.self_attn.q_proj.weight";
  return {
      {"llama", Json::object(), "llama", llama},
      {"mistral", {{"sliding_window", 8}}, "", llama},
      {"qwen2", Json::object(), "qwen2", llama},
      {"qwen3", Json::object(), "qwen3", llama},
      {"mixtral", {{"num_local_experts", 4}}, "llama", llama},
      {"qwen2_moe", {{"num_experts", 4}, {"num_experts_per_tok", 2}}, "qwen2moe", llama},
      {"gpt2",
       {{"n_embd", 32}, {"n_layer", 2}, {"n_head", 4}, {"n_positions", 64}},
       "gpt2",
       "transformer.h.0.attn.c_attn.weight"},
      {"qwen3_moe",
       {{"num_experts", 4}, {"num_experts_per_tok", 2}, {"norm_topk_prob", true}},
       "qwen3moe",
       llama},
      {"glm4_moe",
       {{"n_routed_experts", 4}, {"num_experts_per_tok", 2}, {"use_qk_norm", true}},
       "glm4moe",
       llama},
      {"starcoder2", Json::object(), "starcoder2", llama},
      {"seed_oss", {{"head_dim", 12}}, "seed_oss", llama},
      {"ernie4_5", {{"head_dim", 12}}, "ernie4_5", llama},
      {"helium", {{"mlp_bias", true}}, "", llama},
      {"arcee", {{"hidden_act", "relu2"}}, "arcee", llama},
      {"phi3",
       {{"partial_rotary_factor", 0.75}},
       "phi3",
       "model.layers.0.self_attn.qkv_proj.weight"},
      {"glm4", {{"head_dim", 8}}, "glm4", llama},
      {"stablelm", {{"use_qkv_bias", true}}, "stablelm", llama},
      {"nemotron", {{"partial_rotary_factor", 0.25}}, "nemotron", llama},
      {"gemma2",
       {{"sliding_window", 8}, {"head_dim", 12}, {"query_pre_attn_scalar", 12}},
       "gemma2",
       llama,
       {kSliding, kFull}},
      {"gemma3_text",
       {{"sliding_window", 8}, {"head_dim", 12}, {"query_pre_attn_scalar", 12}},
       "gemma3",
       llama},
      {"gemma4_text",
       {{"sliding_window", 8},
        {"head_dim", 12},
        {"global_head_dim", 16},
        {"num_global_key_value_heads", 1},
        {"attention_k_eq_v", true},
        {"hidden_size_per_layer_input", 6},
        {"vocab_size_per_layer_input", 33},
        {"rope_parameters",
         {{"full_attention",
           {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.5}, {"rope_theta", 5e5}}},
          {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 100.0}}}}}},
       "",
       llama,
       {kSliding, kFull}},
      {"olmo2", Json::object(), "olmo2", llama},
      {"olmo3", {{"sliding_window", 8}}, "olmo2", llama},
      {"exaone4", {{"sliding_window", 8}}, "", llama},
      {"smollm3", Json::object(), "smollm3", llama},
      {"granite",
       {{"embedding_multiplier", 12.0}, {"logits_scaling", 3.0}, {"attention_multiplier", 0.1}},
       "granite",
       llama},
      {"qwen3_5_text",
       {{"full_attention_interval", 2},
        {"linear_num_key_heads", 2},
        {"linear_num_value_heads", 4},
        {"linear_key_head_dim", 8},
        {"linear_value_head_dim", 12}},
       "",
       llama,
       {kLinear, kFull}},
      {"qwen3_5_moe_text",
       {{"full_attention_interval", 2},
        {"linear_num_key_heads", 2},
        {"linear_num_value_heads", 4},
        {"num_experts", 4},
        {"num_experts_per_tok", 2}},
       "",
       llama,
       {kLinear, kFull}},
      {"qwen3_next",
       {{"full_attention_interval", 2},
        {"linear_num_key_heads", 2},
        {"linear_num_value_heads", 4},
        {"num_experts", 4},
        {"num_experts_per_tok", 2}},
       "",
       llama,
       {kLinear, kFull}},
      {"olmo_hybrid", {{"linear_key_head_dim", 6}}, "", llama, {kLinear, kFull}},
      {"lfm2",
       {{"full_attn_idxs", {1}}, {"block_auto_adjust_ff_dim", false}},
       "",
       llama,
       {"conv", kFull}},
      {"lfm2_moe",
       {{"layer_types", {kFull, "conv"}},
        {"num_dense_layers", 1},
        {"num_experts", 4},
        {"num_experts_per_tok", 2}},
       "",
       llama,
       {kFull, "conv"}},
      {"granitemoehybrid",
       {{"layer_types", {"mamba", "attention"}},
        {"mamba_n_heads", 8},
        {"mamba_d_state", 12},
        {"shared_intermediate_size", 48},
        {"num_local_experts", 4}},
       "",
       llama,
       {"mamba", kFull}},
      {"gpt_neox",
       {{"rotary_emb_base", 5e5}, {"use_parallel_residual", false}},
       "gptneox",
       "gpt_neox.layers.0.attention.query_key_value.weight"},
      {"falcon",
       {{"new_decoder_architecture", true}, {"num_kv_heads", 2}},
       "falcon",
       "transformer.h.0.self_attention.query_key_value.weight"},
      {"cohere2", {{"sliding_window", 8}, {"logit_scale", 0.25}}, "cohere2", llama},
      {"nanochat", Json::object(), "", llama},
      {"ministral3", {{"head_dim", 8}}, "mistral3", llama},
      {"hunyuan_v1_dense", {{"head_dim", 12}}, "hunyuan-dense", llama},
      {"apertus", Json::object(), "apertus", llama},
      {"olmoe",
       {{"num_key_value_heads", 4}, {"num_experts", 4}, {"num_experts_per_tok", 2}},
       "olmoe",
       llama},
      {"gpt_oss",
       {{"num_local_experts", 4}, {"num_experts_per_tok", 2}, {"sliding_window", 8}},
       "gpt-oss",
       llama,
       {kSliding, kFull}},
      {"deepseek_v2",
       {{"num_key_value_heads", 4},
        {"n_routed_experts", 4},
        {"num_experts_per_tok", 2},
        {"q_lora_rank", nullptr}},
       "",
       llama},
      {"deepseek_v3",
       {{"num_key_value_heads", 4},
        {"n_routed_experts", 4},
        {"num_experts_per_tok", 2},
        {"n_group", 1},
        {"topk_group", 1},
        {"first_k_dense_replace", 1}},
       "deepseek2",
       llama},
  };
}

Json family_json(const Family& family) {
  Json json = {{"model_type", family.type},
               {"architectures", {architectures::find(family.type)->classes.front()}},
               {"vocab_size", 31},
               {"hidden_size", 32},
               {"intermediate_size", 48},
               {"num_hidden_layers", 2},
               {"num_attention_heads", 4},
               {"num_key_value_heads", 2},
               {"max_position_embeddings", 64},
               {"rope_theta", 5e5},
               {"torch_dtype", "bfloat16"}};
  json.update(family.members);
  return json;
}

TEST(Families, AreAllInTheTableOfThisTest) {
  std::vector<std::string> rows;
  for (const Family& family : families()) {
    rows.push_back(family.type);
  }
  std::vector<std::string> known;
  for (const architectures::Architecture& family : architectures::all()) {
    known.emplace_back(family.model_type);
  }
  EXPECT_THAT(rows, ::testing::UnorderedElementsAreArray(known));
}

class EachFamily : public ::testing::TestWithParam<Family> {
 protected:
  TransformerConfig load(const std::string& json) const {
    dir_.write("config.json", json);
    return init_configs_from_text("training_config: {training_iters: 1}\nmodel_config: {from_hf: " +
                                      dir_.path() + ", seq_length: 8}\n",
                                  "f.yaml")
        .model_config;
  }
  data::TempDir dir_;
};

TEST_P(EachFamily, IsReadAndWrittenAsItself) {
  const TransformerConfig config = load(family_json(GetParam()).dump());
  EXPECT_EQ(file_model_type(config), GetParam().type);
  const std::string text = model_config_json(config, GetParam().type, kBFloat16);
  EXPECT_TRUE(load(text) == config) << text;
  EXPECT_THAT(differences(config, read_hf_config(dir_.path())), IsEmpty());
  EXPECT_EQ(Json::parse(text).at("architectures"), family_json(GetParam()).at("architectures"));
}

TEST_P(EachFamily, IsReadInTheSpellingOfTransformers5) {
  Json newer = family_json(GetParam());
  newer.erase("rope_theta");
  newer.erase("torch_dtype");
  newer["dtype"] = "bfloat16";
  if (!newer.contains("rope_parameters")) {
    newer["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  }
  const std::string kind = newer.contains("sliding_window") ? kSliding : kFull;
  newer["layer_types"] =
      GetParam().kinds.empty() ? std::vector<std::string>{kind, kind} : GetParam().kinds;
  const TransformerConfig config = load(family_json(GetParam()).dump());
  EXPECT_TRUE(load(newer.dump()) == config);
  EXPECT_EQ(parse_hf_config(newer.dump(), "f").dtype, kBFloat16);
}

TEST_P(EachFamily, HasItsNamesAndItsGgufForm) {
  const TransformerConfig config = load(family_json(GetParam()).dump());
  EXPECT_EQ(
      file_place(FileNames(name_scheme(config), config), "layers.0.attention.wq.weight", {32, 32})
          .name,
      GetParam().names);
  const architectures::Architecture& family = *architectures::find(GetParam().type);
  const bool writes = family.gguf && architectures::gguf_objections(family, config).empty();
  EXPECT_EQ(writes ? std::string(family.gguf->architecture) : std::string(), GetParam().gguf);
}

INSTANTIATE_TEST_SUITE_P(Architectures,
                         EachFamily,
                         ::testing::ValuesIn(families()),
                         [](const auto& info) { return info.param.type; });

std::string text_of_page(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Families, TheListInTheDocumentationIsThatOfTheTable) {
  EXPECT_THAT(text_of_page("docs/models.md"),
              HasSubstr("<!-- models: begin -->\n" + architectures::families_markdown() +
                        "<!-- models: end -->"))
      << "put what `config_doc --models` prints between the two lines of docs/models.md";
}

TEST(Families, ThePageIsWhatTheTableSays) {
  EXPECT_EQ(text_of_page("docs/families.md"), architectures::families_page())
      << "run: config_doc --families > docs/families.md";
}

// Of a folder the family stays, though another could say the model; without a name it is the first
// implied one. A named one that cannot be is told by its keys.
TEST(Families, AConfigurationCanNameItsFamily) {
  TransformerConfig config;
  config.hf_model_type = "qwen3";
  try {
    architectures::of(config);
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(), HasSubstr("model_config.hf_model_type: models of the type qwen3"));
    EXPECT_THAT(error.what(), HasSubstr("model_config.hidden_act: is gelu; use swiglu (qwen3)"));
  }
  config.hf_model_type = "phi5";
  try {
    architectures::of(config);
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(), HasSubstr("there is no family \"phi5\"; known are llama, "));
  }
}

TEST(Families, AShareOfTheChannelsIsReadFromBothPlaces) {
  const auto read = [](Json more) {
    Json json = family_json({"phi3", std::move(more), "", ""});
    return parse_hf_config(json.dump(), "config.json");
  };
  const auto share_of = [](const HfConfig& file) {
    for (const HfSetting& setting : file.settings) {
      if (setting.key == "rotary_config.rotary_percent") {
        return setting.value.as<double>();
      }
    }
    return 0.0;
  };
  const auto refused = [&](const Json& more) -> std::string {
    try {
      read(more);
    } catch (const ValueError& error) {
      return error.what();
    }
    return {};
  };
  EXPECT_EQ(share_of(read(Json::object())), 1.0);
  EXPECT_EQ(share_of(read({{"partial_rotary_factor", 0.5}})), 0.5);
  EXPECT_EQ(
      share_of(read({{"rope_parameters", {{"rope_theta", 5e5}, {"partial_rotary_factor", 0.25}}}})),
      0.25);
  EXPECT_THAT(
      refused({{"partial_rotary_factor", 0.5},
               {"rope_parameters", {{"rope_theta", 5e5}, {"partial_rotary_factor", 0.25}}}}),
      HasSubstr("partial_rotary_factor is 0.25, but partial_rotary_factor is 0.5"));
  EXPECT_THAT(refused({{"partial_rotary_factor", 1.5}}),
              HasSubstr("expected a number above 0, at most 1, got 1.5"));
  EXPECT_THAT(refused({{"rope_scaling", {{"type", "longrope"}}}}),
              HasSubstr("expected a list short_factor"));
  EXPECT_THAT(refused({{"head_dim", 16}}), HasSubstr("is not hidden_size 32"));
}

TEST(Families, BlocksOfAStableLm) {
  const auto text_of = [](const Json& more, const std::string& key) {
    const HfConfig file =
        parse_hf_config(family_json({"stablelm", more, "", ""}).dump(), "config.json");
    for (const HfSetting& setting : file.settings) {
      if (setting.key == key) {
        return config::to_yaml(setting.value);
      }
    }
    return std::string();
  };
  EXPECT_EQ(text_of({{"use_parallel_residual", true}}, "norm_placement"), "parallel_one_norm");
  EXPECT_EQ(text_of(Json::object(), "norm_placement"), "pre");
  EXPECT_EQ(text_of({{"qk_layernorm", true}}, "qk_layernorm_scope"), "each_head");
}

TEST(Families, AModelOfImagesAndTextIsReadAsItsTextPart) {
  Json inner = family_json({"gemma3_text", {{"sliding_window", 8}}, "", ""});
  inner.erase("torch_dtype");
  const Json outer = {{"model_type", "gemma3"},
                      {"architectures", {"Gemma3ForConditionalGeneration"}},
                      {"text_config", inner},
                      {"torch_dtype", "bfloat16"},
                      {"eos_token_id", {1, 7}}};
  const HfConfig file = parse_hf_config(outer.dump(), "config.json");
  EXPECT_EQ(file.model_type, "gemma3_text");
  EXPECT_EQ(file.dtype, kBFloat16);
  EXPECT_THAT(file.token_ids.eos, ::testing::ElementsAre(1, 7));
  EXPECT_THAT(file.remark, HasSubstr("a model of type gemma3"));
}

// Both spellings of what layers without a window have, and what is no such model.
TEST(Families, HeadsOfAGemma4) {
  Json layers = Json::array();
  for (int64_t layer = 0; layer < 6; ++layer) {
    layers.push_back(layer == 2 ? kFull : kSliding);  // and the last one always
  }
  const Json members = {{"num_hidden_layers", 6},
                        {"sliding_window", 8},
                        {"head_dim", 12},
                        {"layer_types", layers},
                        {"hidden_size_per_layer_input", 0},
                        {"num_kv_shared_layers", 2},
                        {"use_double_wide_mlp", true}};
  const auto read = [&](const Json& more) {
    Json json = family_json({"gemma4_text", members, "", ""});
    json.erase("rope_theta");
    json.update(more);
    return parse_hf_config(json.dump(), "config.json");
  };
  const auto value_of = [](const HfConfig& file, const std::string& key) {
    std::string out = "not set";
    for (const HfSetting& setting : file.settings) {
      out = setting.key == key ? config::to_yaml(setting.value) : out;
    }
    return out;
  };
  const auto refused = [&](const Json& more) -> std::string {
    try {
      read(more);
    } catch (const ValueError& error) {
      return error.what();
    }
    return {};
  };
  const Json by_layer = {{"2", {{"head_dim", 16}}}, {"05", {{"head_dim", 16}}}};
  for (const Json& more : {Json{{"global_head_dim", 16}}, Json{{"per_layer_config", by_layer}}}) {
    const HfConfig file = read(more);
    EXPECT_EQ(value_of(file, "kv_channels"), "12");
    EXPECT_EQ(value_of(file, "full_attention_kv_channels"), "16");
    EXPECT_EQ(value_of(file, "full_attention_num_query_groups"), "null");
    EXPECT_EQ(value_of(file, "num_kv_shared_layers"), "2");
    EXPECT_EQ(value_of(file, "use_double_wide_mlp"), "True");
    EXPECT_EQ(value_of(file, "layer_types"),
              "[sliding_attention, sliding_attention, full_attention, sliding_attention, "
              "sliding_attention, full_attention]");
    EXPECT_EQ(value_of(file, "rotary_config.rope_type"), "proportional");
    EXPECT_EQ(value_of(file, "rotary_config.rotary_percent"), "0.25");
    EXPECT_EQ(value_of(file, "rotary_config.sliding_rotary_base"), "10000.0");
    EXPECT_EQ(value_of(file, "num_experts"), "1");
  }
  EXPECT_EQ(value_of(read(Json::object()), "full_attention_kv_channels"), "512");
  // Which counts with attention_k_eq_v alone.
  EXPECT_EQ(value_of(read({{"num_global_key_value_heads", 1}}), "full_attention_num_query_groups"),
            "null");
  EXPECT_EQ(value_of(read({{"num_global_key_value_heads", 1}, {"attention_k_eq_v", true}}),
                     "full_attention_num_query_groups"),
            "1");
  EXPECT_THAT(refused({{"per_layer_config", {{"2", {{"head_dim", 16}}}}}}),
              HasSubstr("layer 5 has other heads than others of its kind: head_dim 12"));
  EXPECT_THAT(refused({{"per_layer_config", {{"1", {{"head_dim", 16}}}}}}),
              HasSubstr("layer 1 has other heads than others of its kind"));
  EXPECT_THAT(refused({{"per_layer_config", {{"9", {{"head_dim", 16}}}}}}),
              HasSubstr("\"9\" is the number of no layer"));
  EXPECT_THAT(refused({{"per_layer_config", {{"2", {{"hidden_size", 16}}}}}}),
              HasSubstr("got hidden_size: 16"));
  EXPECT_THAT(refused({{"num_kv_shared_layers", 6}}),
              HasSubstr("expected an integer from 0 to 5, got 6"));
  EXPECT_THAT(refused({{"use_bidirectional_attention", "all"}}), HasSubstr("got \"all\""));
  EXPECT_EQ(refused({{"use_bidirectional_attention", "vision"}}), "");
  EXPECT_THAT(refused({{"enable_moe_block", true}, {"num_experts", 4}}),
              HasSubstr("top_k_experts: expected a number beside enable_moe_block: true"));
  EXPECT_THAT(refused({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e4}}}}),
              HasSubstr("expected an object for full_attention"));
}

// Sigmoids, groups, a shared expert, leading dense layers.
TEST(Families, RouterOfAGlm4Moe) {
  const Json json = family_json({"glm4_moe",
                                 {{"n_routed_experts", 8},
                                  {"num_experts_per_tok", 2},
                                  {"n_group", 4},
                                  {"topk_group", 2},
                                  {"n_shared_experts", 2},
                                  {"moe_intermediate_size", 20},
                                  {"routed_scaling_factor", 2.5}},
                                 "",
                                 ""});
  data::TempDir dir;
  dir.write("config.json", json.dump());
  const MoEConfig moe =
      init_configs_from_text("training_config: {training_iters: 1}\nmodel_config: {from_hf: " +
                                 dir.path() + ", seq_length: 8}\n",
                             "f.yaml")
          .model_config.moe;
  EXPECT_EQ(moe.moe_router_score_function, "sigmoid");
  EXPECT_EQ(moe.topk_method, "noaux_tc");
  EXPECT_EQ(moe.moe_router_num_groups, 4);
  EXPECT_EQ(moe.moe_router_group_topk, 2);
  EXPECT_EQ(moe.moe_shared_expert_intermediate_size, 40);
  EXPECT_EQ(moe.moe_router_topk_scaling_factor, 2.5);
  EXPECT_EQ(moe.first_k_dense_replace, 1);
  EXPECT_TRUE(moe.moe_router_enable_expert_bias);
  EXPECT_EQ(moe.moe_router_bias_update_rate, 0.0);
}

// A configuration that none can say is told by the keys in which the nearest differ.
TEST(Families, WhatNoneSaysIsToldByItsKeys) {
  const architectures::Architecture& llama = *architectures::find("llama");
  TransformerConfig config;
  config.hidden_act = "gelu";
  const auto objections = architectures::objections(llama, config);
  EXPECT_THAT(architectures::nearest({{"llama", objections}}),
              HasSubstr("\n  model_config.hidden_act: is gelu; use swiglu (llama)"));
}

}  // namespace
}  // namespace tapestry

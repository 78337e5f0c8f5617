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
};

std::vector<Family> families() {
  const std::string llama = "model.layers.0.self_attn.q_proj.weight";
  return {
      {"llama", Json::object(), "llama", llama},
      {"mistral", {{"sliding_window", 8}}, "", llama},
      {"qwen2", Json::object(), "qwen2", llama},
      {"qwen3", Json::object(), "qwen3", llama},
      {"mixtral", {{"num_local_experts", 4}}, "", llama},
      {"qwen2_moe", {{"num_experts", 4}, {"num_experts_per_tok", 2}}, "", llama},
      {"gpt2",
       {{"n_embd", 32}, {"n_layer", 2}, {"n_head", 4}, {"n_positions", 64}},
       "gpt2",
       "transformer.h.0.attn.c_attn.weight"},
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
  newer["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  if (newer.contains("sliding_window")) {
    newer["layer_types"] = {"sliding_attention", "sliding_attention"};
  } else {
    newer["layer_types"] = {"full_attention", "full_attention"};
  }
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

TEST(Families, TheListInTheDocumentationIsThatOfTheTable) {
  std::ifstream file("docs/models.md");
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("<!-- models: begin -->\n" +
                                    architectures::families_markdown() + "<!-- models: end -->"))
      << "put what `config_doc --models` prints between the two lines of docs/models.md";
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

#include "interop/export/gguf_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/io/safetensors.h"
#include "autograd/tensor/error.h"
#include "interop/export/gguf_adapter.h"
#include "interop/gguf/gguf_model.h"
#include "tests/golden/gguf_file.h"
#include "tests/message_of.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr const char* kLlama = "tests/data/golden_gguf/llama/hf";
constexpr const char* kGpt2 = "tests/data/golden_gguf/gpt2/hf";

std::vector<float> values_of(const testing::GgufStoredTensor& tensor) {
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

std::vector<float> counted(int64_t count, float step) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i) * step;
  }
  return values;
}

struct StoredLora {
  std::string module;
  int64_t rank = 0;
  int64_t in = 0;
  int64_t out = 0;
};

// A PEFT folder: A counts by 1, B by 0.5.
void write_adapter(const std::string& folder, Json config, const std::vector<StoredLora>& loras) {
  fs::create_directories(folder);
  config.update({{"peft_type", "LORA"}, {"task_type", "CAUSAL_LM"}});
  std::ofstream(folder + "/adapter_config.json") << config.dump();
  std::vector<TensorView> views;
  std::vector<std::vector<float>> values;
  values.reserve(2 * loras.size());
  for (const StoredLora& lora : loras) {
    values.push_back(counted(lora.rank * lora.in, 1.0F));
    views.push_back({"base_model.model." + lora.module + ".lora_A.weight",
                     kFloat32,
                     {lora.rank, lora.in},
                     values.back().data()});
    values.push_back(counted(lora.out * lora.rank, 0.5F));
    views.push_back({"base_model.model." + lora.module + ".lora_B.weight",
                     kFloat32,
                     {lora.out, lora.rank},
                     values.back().data()});
  }
  write_safetensors(folder + "/adapter_model.safetensors", views);
}

TEST(GgufExport, OverflowNamesTheTensorAndLeavesNoFile) {
  const data::TempDir folder;
  fs::copy(kGpt2, folder.file("hf"), fs::copy_options::recursive);
  const std::string weights = folder.file("hf/model.safetensors");
  std::vector<std::vector<float>> values;
  std::vector<TensorView> views;
  {
    const SafetensorsReader reader(weights);
    values.reserve(reader.entries().size());
    for (const auto& [name, entry] : reader.entries()) {
      values.emplace_back(static_cast<size_t>(entry.shape.numel()));
      reader.read(name, values.back().data());
      if (name == "transformer.h.0.mlp.c_fc.weight") {
        values.back()[7] = 1e6F;
      }
      views.push_back({name, kFloat32, entry.shape, values.back().data()});
    }
  }
  write_safetensors(weights, views);
  const ExportSource source = open_export_source(folder.file("hf"));
  const std::string path = folder.file("out.gguf");
  EXPECT_THAT(message_of<ValueError>(
                  [&] { export_gguf(source, path, {.type = GgufType::kF16, .name = {}}); }),
              AllOf(HasSubstr("tensor blk.0.ffn_up.weight"), HasSubstr("1e+06")));
  EXPECT_FALSE(fs::exists(path));
  export_gguf(source, path, {.type = GgufType::kBF16, .name = {}});
  EXPECT_EQ(testing::read_gguf_file(path).metadata.at("general.name").text(), "hf");
}

TEST(GgufExport, LeavesOutLayersThatPredictFurtherTokens) {
  const data::TempDir folder;
  ExportSource source = open_export_source(kLlama);
  export_gguf(source, folder.file("without"), {});
  source.config.model_config.mtp_num_layers = 1;
  export_gguf(source, folder.file("with"), {});
  EXPECT_EQ(folder.read("with"), folder.read("without"));
}

TEST(GgufExport, WeightsOfAnotherModelAreRefused) {
  const data::TempDir folder;
  fs::copy(kLlama, folder.file("hf"), fs::copy_options::recursive);
  Json config = Json::parse(std::ifstream(folder.file("hf/config.json")));
  config["intermediate_size"] = 128;
  std::ofstream(folder.file("hf/config.json")) << config.dump();
  EXPECT_THAT(message_of<IoError>([&] {
                export_gguf(open_export_source(folder.file("hf")), folder.file("out.gguf"), {});
              }),
              AllOf(HasSubstr("mlp.gate_proj.weight has the shape [64, 32]"),
                    HasSubstr("expected [128, 32]")));
  config["intermediate_size"] = 64;
  config["num_hidden_layers"] = 2;
  std::ofstream(folder.file("hf/config.json")) << config.dump();
  EXPECT_THAT(message_of<IoError>([&] {
                export_gguf(open_export_source(folder.file("hf")), folder.file("out.gguf"), {});
              }),
              HasSubstr("there is no tensor model.layers.1."));
  EXPECT_THROW(open_export_source(folder.file("nothing")), IoError);
}

TEST(GgufAdapter, RowsOfQueriesArePairedAndScalesAreOneAlpha) {
  const data::TempDir folder;
  write_adapter(folder.file("adapter"),
                {{"r", 4},
                 {"lora_alpha", 8},
                 {"target_modules", {"q_proj", "v_proj"}},
                 {"alpha_pattern", {{"v_proj", 16}}}},
                {{"model.layers.0.self_attn.q_proj", 4, 32, 32},
                 {"model.layers.0.self_attn.v_proj", 4, 32, 16}});
  export_gguf_adapter(open_export_source(kLlama), folder.file("adapter"), folder.file("a.gguf"));
  const testing::GgufFile file = testing::read_gguf_file(folder.file("a.gguf"));
  EXPECT_EQ(file.metadata.at("general.architecture").text(), "llama");
  EXPECT_EQ(file.metadata.at("general.type").text(), "adapter");
  EXPECT_EQ(file.metadata.at("adapter.type").text(), "lora");
  EXPECT_EQ(file.metadata.at("adapter.lora.alpha").as<float>(), 8.0F);
  EXPECT_EQ(file.tensors.size(), 4U);
  EXPECT_EQ(values_of(file.tensors.at("blk.0.attn_q.weight.lora_a")), counted(128, 1.0F));
  EXPECT_THAT(file.tensors.at("blk.0.attn_q.weight.lora_a").dimensions,
              ::testing::ElementsAre(32U, 4U));
  const std::vector<float> q = values_of(file.tensors.at("blk.0.attn_q.weight.lora_b"));
  for (int64_t row = 0; row < 32; ++row) {
    EXPECT_EQ(q[static_cast<size_t>(row * 4)], 0.5F * static_cast<float>(pair_rows(row, 8) * 4));
  }
  // The scale of v is twice that of q.
  EXPECT_EQ(values_of(file.tensors.at("blk.0.attn_v.weight.lora_b")), counted(64, 1.0F));
}

TEST(GgufAdapter, RankStabilisedScalesAndFusedModules) {
  const data::TempDir folder;
  write_adapter(folder.file("adapter"),
                {{"r", 4},
                 {"lora_alpha", 8},
                 {"use_rslora", true},
                 {"fan_in_fan_out", true},
                 {"target_modules", {"c_attn"}}},
                {{"transformer.h.0.attn.c_attn", 4, 32, 96}});
  export_gguf_adapter(open_export_source(kGpt2), folder.file("adapter"), folder.file("a.gguf"));
  const testing::GgufFile file = testing::read_gguf_file(folder.file("a.gguf"));
  EXPECT_EQ(file.metadata.at("adapter.lora.alpha").as<float>(), 16.0F);  // 8 / sqrt(4) * 4
  EXPECT_EQ(values_of(file.tensors.at("blk.0.attn_qkv.weight.lora_b")), counted(384, 0.5F));
}

TEST(GgufAdapter, WhatGgufCannotSayIsRefused) {
  const data::TempDir folder;
  const ExportSource base = open_export_source(kLlama);
  const std::vector<StoredLora> q = {{"model.layers.0.self_attn.q_proj", 4, 32, 32}};
  int number = 0;
  const auto refused = [&](const Json& keys, const std::vector<StoredLora>& loras) {
    Json config = {{"r", 4}, {"lora_alpha", 8}, {"target_modules", {"q_proj"}}};
    config.update(keys);
    const std::string adapter = folder.file("adapter" + std::to_string(number++));
    write_adapter(adapter, config, loras);
    return message_of<ValueError>(
        [&] { export_gguf_adapter(base, adapter, folder.file("a.gguf")); });
  };
  EXPECT_THAT(refused({{"use_dora", true}}, q), AllOf(HasSubstr("use_dora"), HasSubstr("--merge")));
  EXPECT_THAT(refused({{"modules_to_save", {"lm_head"}}}, q), HasSubstr("modules_to_save"));
  EXPECT_THAT(refused(Json::object(), {{"model.layers.5.self_attn.q_proj", 4, 32, 32}}),
              HasSubstr("the base has no linear module model.layers.5.self_attn.q_proj"));
  EXPECT_THAT(refused({{"r", 8}}, q), HasSubstr("has the shape [4, 32], expected [8, 32]"));
  EXPECT_FALSE(fs::exists(folder.file("a.gguf")));
  fs::create_directories(folder.file("none"));
  EXPECT_THROW(export_gguf_adapter(base, folder.file("none"), folder.file("a.gguf")), IoError);
}

}  // namespace
}  // namespace tapestry

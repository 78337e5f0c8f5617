// A folder of Hugging Face in, one out.
#include "interop/export/hf_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/io/safetensors_directory.h"
#include "autograd/tensor/error.h"
#include "interop/architectures/hf_folder.h"
#include "interop/export/new_folder.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/dist_checkpointing/tensor_files.h"
#include "parallel_core/training/step/get_model.h"
#include "tests/message_of.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Json = nlohmann::json;

struct StoredBytes {
  DType dtype;
  Shape shape;
  std::string bytes;
  bool operator==(const StoredBytes&) const = default;
};

std::map<std::string, StoredBytes> tensors_in(const std::string& folder) {
  const SafetensorsDirectory files(folder);
  std::map<std::string, StoredBytes> out;
  for (const std::string& name : files.names()) {
    StoredBytes tensor{files.dtype(name), files.shape(name), {}};
    tensor.bytes.resize(static_cast<size_t>(tensor.shape.numel() * size_of(tensor.dtype)));
    files.read(name, tensor.bytes.data());
    out.emplace(name, std::move(tensor));
  }
  return out;
}

std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A folder as somebody would have it: with files that say nothing to us, and odd spacing.
void make_folder(const std::string& from, const std::string& folder) {
  fs::copy(from, folder, fs::copy_options::recursive);
  const auto write = [&](const char* name, const char* text) {
    std::ofstream(fs::path(folder) / name) << text;
  };
  write("generation_config.json", "{ \"eos_token_id\" : [2],\n\"temperature\": 0.6}");
  write("tokenizer_config.json", "{\"chat_template\":   \"{{ messages }}\"}");
  write("special_tokens_map.json", "{}");
  write("chat_template.jinja", "{{ messages }}\n\n");
  write("tokenizer.model", "any bytes");
}

class HfFolders : public ::testing::TestWithParam<std::tuple<const char*, uint64_t>> {};

TEST_P(HfFolders, ComeOutAsTheyWentIn) {
  const auto [architecture, shard_bytes] = GetParam();
  const data::TempDir folder;
  const std::string in = folder.file("in");
  make_folder(concat("tests/data/golden_gguf/", architecture, "/hf"), in);
  export_hf(open_export_source(in), folder.file("out/"), {.max_shard_bytes = shard_bytes});
  const bool sharded = shard_bytes < 100000;
  EXPECT_EQ(fs::exists(folder.file("out/model.safetensors.index.json")), sharded);
  EXPECT_EQ(tensors_in(folder.file("out")), tensors_in(in));
  for (const fs::directory_entry& entry : fs::directory_iterator(in)) {
    const std::string name = entry.path().filename();
    if (!name.ends_with(".safetensors")) {
      EXPECT_EQ(content(folder.file("out/" + name)), content(entry.path())) << name;
    }
  }
  // The shards go in as they come out.
  export_hf(open_export_source(folder.file("out")), folder.file("again"), {});
  EXPECT_EQ(tensors_in(folder.file("again")), tensors_in(in));
  EXPECT_TRUE(fs::exists(folder.file("again/model.safetensors")));
}

INSTANTIATE_TEST_SUITE_P(Files,
                         HfFolders,
                         ::testing::Combine(::testing::Values("llama", "gpt2"),
                                            ::testing::Values(5'000'000'000, 40'000)));

TEST(HfExport, DtypesAreConvertedAndSaid) {
  const data::TempDir folder;
  const ExportSource source = open_export_source("tests/data/golden_gguf/gpt2/hf");
  export_hf(source, folder.file("out"), {.dtype = kBFloat16});
  const Json config = Json::parse(content(folder.file("out/config.json")));
  EXPECT_EQ(config.at("torch_dtype"), "bfloat16");
  const auto before = tensors_in(source.folder);
  for (const auto& [name, tensor] : tensors_in(folder.file("out"))) {
    ASSERT_EQ(tensor.dtype, kBFloat16) << name;
    ASSERT_EQ(tensor.shape, before.at(name).shape) << name;
    for (size_t i = 0; i < tensor.bytes.size() / 2; ++i) {
      float value = 0;
      std::memcpy(&value, before.at(name).bytes.data() + 4 * i, sizeof(value));
      uint16_t bits = 0;
      std::memcpy(&bits, tensor.bytes.data() + 2 * i, sizeof(bits));
      ASSERT_EQ(bits, BFloat16(value).bits) << name;
    }
  }
}

TEST(HfExport, ConfigTextsKeepWhatIsNotTheirDtype) {
  const std::string text = "{\"a\":1,  \"torch_dtype\": \"float32\"}";
  EXPECT_EQ(config_json_with_dtype(text, kFloat32), text);
  EXPECT_EQ(Json::parse(config_json_with_dtype(text, kBFloat16)),
            (Json{{"a", 1}, {"torch_dtype", "bfloat16"}}));
  EXPECT_EQ(Json::parse(config_json_with_dtype("{\"dtype\":\"float32\"}", kFloat16)),
            (Json{{"dtype", "float16"}}));
  EXPECT_EQ(Json::parse(config_json_with_dtype("{}", kFloat16)),
            (Json{{"torch_dtype", "float16"}}));
}

TEST(HfExport, WhatCannotBeWrittenIsRefusedAndLeavesNothing) {
  const data::TempDir folder;
  const ExportSource source = open_export_source("tests/data/golden_gguf/gpt2/hf");
  fs::create_directories(folder.file("full/inside"));
  EXPECT_THAT(message_of<ValueError>([&] { export_hf(source, folder.file("full"), {}); }),
              HasSubstr("is there already"));

  const std::string in = folder.file("in");
  fs::copy(source.folder, in, fs::copy_options::recursive);
  const std::vector<float> large = {1, 70000};
  const std::vector<TensorView> views = {{"transformer.wte.weight", kFloat32, {2}, large.data()}};
  write_safetensors(in + "/model.safetensors", views);
  EXPECT_THAT(message_of<ValueError>([&] {
                export_hf(open_export_source(in), folder.file("out"), {.dtype = kFloat16});
              }),
              HasSubstr("tensor transformer.wte.weight: float16 cannot hold"));
  EXPECT_FALSE(fs::exists(folder.file("out")));
  size_t entries = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.path())) {
    ++entries;
    EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
  }
  EXPECT_EQ(entries, 2U);

  ExportSource odd = open_export_source(in);
  odd.folder = folder.file("odd");
  fs::create_directories(odd.folder);
  odd.config.model_config.hidden_act = "relu";
  EXPECT_THAT(message_of<ValueError>([&] { export_hf(odd, folder.file("out"), {}); }),
              HasSubstr("model_config.hidden_act: is relu"));
}

// A Llama that was trained to predict further tokens is saved under logical names, as a Llama's
// files cannot have such layers, and comes out as a Llama.
TEST(HfExport, LayersAheadAreLeftOutOfAFamilyWithoutAPlaceForThem) {
  const data::TempDir folder;
  const std::string text =
      "training_config: {training_iters: 20}\ndataset_config: {tokenizer_type: byte}\n"
      "model_config: {vocab_size: 260, num_layers: 2, num_attention_heads: 4, hidden_size: 32, "
      "ffn_hidden_size: 48, seq_length: 8, position_embedding_type: rope, normalization: RMSNorm, "
      "hidden_act: swiglu, add_bias_linear: False, mtp_num_layers: 2}\n"
      "optimizer_config: {learning_rate: 0.01}\n";
  const AllConfig config = init_configs_from_text(text, "run.yaml");
  const auto model = get_model(config);
  const std::string saved = save_checkpoint(
      *model, config.model_config, 1, {.directory = folder.file("run"), .resolved_config = text});
  export_hf(open_export_source(saved), folder.file("out"), {});
  EXPECT_EQ(Json::parse(content(folder.file("out/config.json"))).at("model_type"), "llama");
  const auto out = tensors_in(folder.file("out"));
  EXPECT_TRUE(out.contains("model.layers.1.mlp.down_proj.weight"));
  for (const auto& [name, tensor] : out) {
    EXPECT_FALSE(name.starts_with("model.layers.2.")) << name;
    EXPECT_TRUE(name.starts_with("model.") || name == "lm_head.weight") << name;
  }
  const auto before = tensors_in(saved);
  EXPECT_EQ(out.at("model.layers.1.self_attn.q_proj.weight").bytes,
            before.at("layers.1.attention.wq.weight").bytes);
}

TEST(NewFolder, AppearsWhenItIsComplete) {
  const data::TempDir folder;
  const std::string path = folder.file("a/b");
  {
    NewFolder made(path);
    std::ofstream(made.temporary() + "/file") << "x";
    EXPECT_FALSE(fs::exists(path));
  }
  EXPECT_TRUE(fs::is_empty(folder.file("a")));
  NewFolder made(path + "/");
  std::ofstream(made.temporary() + "/file") << "x";
  made.commit();
  EXPECT_EQ(content(path + "/file"), "x");
}

}  // namespace
}  // namespace tapestry

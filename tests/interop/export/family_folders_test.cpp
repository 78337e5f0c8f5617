// Each family: the folder of a model of the transformers library in, the same folder out. What such
// folders hold is told by tests/data/hf_families, not by our own tables.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/io/safetensors.h"
#include "autograd/io/safetensors_directory.h"
#include "autograd/ops/ops.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "interop/architectures/hf_folder.h"
#include "interop/architectures/read_hf_config.h"
#include "interop/architectures/registry.h"
#include "interop/export/hf_export.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/inference/open_model.h"
#include "parallel_core/training/step/get_model.h"
#include "tests/message_of.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Json = nlohmann::json;

const Json& folders() {
  static const Json cases = Json::parse(std::ifstream("tests/data/hf_families/families.json"));
  return cases;
}

std::vector<std::string> folder_names() {
  std::vector<std::string> names;
  for (const auto& [name, folder] : folders().items()) {
    names.push_back(name);
  }
  return names;
}

// dtype, shape and bytes of each tensor.
using FolderTensors = std::map<std::string, std::tuple<DType, Shape, std::string>>;
FolderTensors tensors_of_folder(const std::string& folder) {
  const SafetensorsDirectory files(folder);
  FolderTensors out;
  for (const std::string& name : files.names()) {
    const Shape shape = files.shape(name);
    std::string bytes(static_cast<size_t>(shape.numel() * size_of(files.dtype(name))), '\0');
    files.read(name, bytes.data());
    out[name] = {files.dtype(name), shape, std::move(bytes)};
  }
  return out;
}

Json config_of_folder(const std::string& folder) {
  return Json::parse(std::ifstream(folder + "/config.json"));
}

// With random weights, all of which a bfloat16 can hold, so that both dtypes have the same.
void make_family_folder(const std::string& name, DType dtype, const std::string& folder) {
  fs::create_directories(folder);
  Json config = folders().at(name).at("config");
  config.erase("torch_dtype");
  config["dtype"] = std::string(name_of(dtype));
  std::ofstream(folder + "/config.json") << config.dump();
  std::vector<Tensor> values;
  std::vector<TensorView> views;
  for (const auto& [tensor, content] : folders().at(name).at("tensors").items()) {
    if (content.is_number()) {
      values.push_back(full({}, content.get<double>(), dtype));
    } else {
      Shape shape;
      for (const Json& size : content) {
        shape.push_back(size.get<int64_t>());
      }
      const RandomKey key{7, std::hash<std::string>()(tensor), 0};
      values.push_back(normal(0, 0.05, shape, kFloat32, key).to(kBFloat16).to(dtype));
    }
    views.push_back({tensor, dtype, values.back().shape(), values.back().raw()});
  }
  write_safetensors(folder + "/model.safetensors", views);
}

// What a run that starts from the folder saves before its first step.
std::string save_again(const std::string& folder, const std::string& directory) {
  const AllConfig config = open_export_source(folder).config;
  const auto model = get_model(config);
  load_weights(*model, config.model_config, folder);
  HfSource source = read_hf_source(folder);
  source.token_ids = read_hf_config(folder).token_ids;
  std::string saved =
      save_checkpoint(*model, config.model_config, 1, {.directory = directory, .source = source});
  fs::remove(saved + "/config.yaml");  // which is a run's
  return saved;
}

TEST(FamilyFolders, AreOfEveryFamily) {
  std::vector<std::string> types;
  for (const auto& [name, folder] : folders().items()) {
    types.push_back(folder.at("config").at("model_type"));
  }
  for (const architectures::Architecture& family : architectures::all()) {
    EXPECT_THAT(types, ::testing::Contains(std::string(family.model_type)));
  }
}

class FamilyFolder : public ::testing::TestWithParam<std::string> {};

TEST_P(FamilyFolder, ComesOutOfACheckpointAsItWentIn) {
  const data::TempDir dir;
  const std::string in = dir.file("in");
  make_family_folder(GetParam(), kFloat32, in);
  const std::string saved = save_again(in, dir.file("run"));
  EXPECT_EQ(tensors_of_folder(saved), tensors_of_folder(in));
  EXPECT_EQ(config_of_folder(saved), config_of_folder(in));
  const std::string half = dir.file("half");
  make_family_folder(GetParam(), kBFloat16, half);
  export_hf(open_export_source(saved), dir.file("out"), {.dtype = kBFloat16});
  EXPECT_EQ(tensors_of_folder(dir.file("out")), tensors_of_folder(half));
  EXPECT_EQ(config_of_folder(dir.file("out")), config_of_folder(half));
}

INSTANTIATE_TEST_SUITE_P(Families,
                         FamilyFolder,
                         ::testing::ValuesIn(folder_names()),
                         [](const auto& info) { return info.param; });

// Experts one by one and stacked, fused and single matrices: the blocks are those of the values.
TEST(FamilyFolders, AreReadIntoBlocks) {
  for (const char* name : {"mixtral", "gpt_oss", "llama", "phi3"}) {
    const data::TempDir dir;
    make_family_folder(name, kFloat32, dir.file("in"));
    const AllConfig config = open_export_source(dir.file("in")).config;
    const auto whole = get_model(config);
    load_weights(*whole, config.model_config, dir.file("in"));
    std::map<std::string, Tensor> values;
    for (const auto& entry : whole->named_parameters()) {
      values.emplace(entry.name, entry.parameter->detach());
    }
    for (const BlockFormat format : kernels::kBlockFormats) {
      const auto model = model_without_weights(config, all_in(format));
      load_weights(*model, config.model_config, dir.file("in"));
      int64_t of_experts = 0;
      int64_t quantized = 0;
      for (const auto& entry : model->named_parameters()) {
        const nn::Parameter& parameter = *entry.parameter;
        if (!parameter.is_quantized()) {
          continue;
        }
        const QuantizedMatrix& found = parameter.quantized();
        const QuantizedMatrix expected =
            quantize(values.at(entry.name).view({-1, found.in()}), format);
        ASSERT_EQ(found.bytes().shape(), expected.bytes().shape()) << entry.name;
        EXPECT_EQ(std::memcmp(found.bytes().raw(), expected.bytes().raw(),
                              static_cast<size_t>(found.bytes().numel())),
                  0)
            << name << ", " << entry.name;
        of_experts += parameter.flags().expert ? 1 : 0;
        ++quantized;
      }
      EXPECT_GT(quantized, 0) << name;
      EXPECT_EQ(of_experts > 0, config.model_config.moe.num_experts > 1) << name;
    }
  }
}

TEST(FamilyFolders, OfOtherWidthsAreNoBlocks) {
  const data::TempDir dir;
  make_family_folder("qwen3_moe", kFloat32, dir.file("in"));
  const AllConfig config = open_export_source(dir.file("in")).config;
  EXPECT_THAT(
      message_of<ValueError>([&] { model_without_weights(config, all_in(BlockFormat::kQ4_0)); }),
      HasSubstr(
          "layers.0.mlp.experts.w2: 48 numbers of a row on this rank cannot be blocks of 32"));
}

// Checkpoints of before lack the numbers of an activation, and those in MindSpore's form have none.
TEST(FamilyFolders, NumbersThatNoModelLearnsAreAddedAndChecked) {
  const data::TempDir dir;
  const std::string in = dir.file("in");
  make_family_folder("apertus", kFloat32, in);
  const std::string whole = dir.file("whole");
  fs::copy(in, whole);
  const std::string beta = "model.layers.1.mlp.act_fn.beta";
  const auto rewrite = [&](const char* what, float number) {
    std::vector<std::string> bytes;
    std::vector<TensorView> views;
    const FolderTensors tensors = tensors_of_folder(whole);
    bytes.reserve(tensors.size());
    for (const auto& [name, tensor] : tensors) {
      bytes.push_back(std::get<2>(tensor));
      if (name == beta) {
        std::memcpy(bytes.back().data(), &number, sizeof(number));
      }
      if (name.find(what) == std::string::npos) {
        views.push_back({name, kFloat32, std::get<1>(tensor), bytes.back().data()});
      }
    }
    write_safetensors(in + "/model.safetensors", views);
  };
  rewrite(".act_fn.eps", 0.5F);
  export_hf(open_export_source(in), dir.file("out"), {});
  EXPECT_EQ(tensors_of_folder(dir.file("out")), tensors_of_folder(whole));
  EXPECT_EQ(tensors_of_folder(save_again(in, dir.file("run"))), tensors_of_folder(whole));
  rewrite("nothing", 0.25F);
  EXPECT_THAT(
      message_of<IoError>([&] { save_again(in, dir.file("other")); }),
      HasSubstr("tensor " + beta + " is 0.25, but models of this family are built with 0.5"));
}

}  // namespace
}  // namespace tapestry

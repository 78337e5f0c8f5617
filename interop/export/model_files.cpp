#include "interop/export/model_files.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "autograd/io/atomic_file.h"
#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/io/strict_json.h"
#include "autograd/tensor/error.h"
#include "interop/architectures/hf_folder.h"
#include "interop/architectures/registry.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;
using ModelJson = nlohmann::ordered_json;

constexpr const char* kModelConfigFile = "config.json";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kTied = "tie_word_embeddings";
constexpr uint64_t kMaxModelConfigBytes = uint64_t{1} << 20U;
constexpr size_t kCopyBytes = size_t{4} << 20U;

std::string written_json(const ModelJson& json) { return json.dump(2) + "\n"; }

}  // namespace

void copy_whole_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  const InputFile file(from.string());
  AtomicFile copy(to.string());
  std::vector<char> buffer(static_cast<size_t>(std::min<uint64_t>(kCopyBytes, file.size())));
  for (uint64_t at = 0; at < file.size(); at += buffer.size()) {
    const auto count = static_cast<size_t>(std::min<uint64_t>(buffer.size(), file.size() - at));
    file.read_at(at, buffer.data(), count, "content");
    copy.write(buffer.data(), count);
  }
  copy.commit();
}

namespace {

bool is_of_the_model(const std::string& name) {
  constexpr std::array<std::string_view, 11> kWeightEndings = {
      ".safetensors", ".safetensors.index.json",
      ".bin",         ".bin.index.json",
      ".pt",          ".pth",
      ".ckpt",        ".gguf",
      ".msgpack",     ".h5",
      ".onnx"};
  constexpr std::array<std::string_view, 8> kOther = {
      "config.json",         "config.yaml",     "manifest.json",     "training_state.json",
      "adapter_config.json", "base_model.json", "pytorch_model.bin", "hashes.json"};
  return !name.starts_with(".") &&
         std::none_of(kWeightEndings.begin(), kWeightEndings.end(),
                      [&](std::string_view ending) { return name.ends_with(ending); }) &&
         std::find(kOther.begin(), kOther.end(), name) == kOther.end();
}

}  // namespace

ModelConfigFile::ModelConfigFile(const std::string& folder)
    : path_((fs::path(folder) / kModelConfigFile).string()) {
  const InputFile file(path_);
  const nlohmann::json json = read_strict_json(file, "config", kMaxModelConfigBytes);
  check<IoError>(json.is_object(), path_, ": is not a JSON object");
  text_.resize(file.size());
  file.read_at(0, text_.data(), text_.size(), "config");
}

bool ModelConfigFile::is_tied() const {
  const ModelJson json = ModelJson::parse(text_);
  const auto found = json.find(kTied);
  if (found != json.end() && found->is_boolean()) {
    return found->get<bool>();
  }
  const auto type = json.find("model_type");
  const auto* family = type != json.end() && type->is_string()
                           ? architectures::find(type->get_ref<const std::string&>())
                           : nullptr;
  return family != nullptr && family->tied;
}

void ModelConfigFile::set_tied(bool tied) {
  ModelJson json = ModelJson::parse(text_);
  json[kTied] = tied;
  text_ = written_json(json);
}

void ModelConfigFile::set_dtype(DType dtype) { text_ = config_json_with_dtype(text_, dtype); }

void ModelConfigFile::set_score_head(std::optional<int64_t> pad) {
  text_ = score_config_json(text_, path_, pad);
}

void ModelConfigFile::write(const std::string& folder) const {
  write_file_atomically((fs::path(folder) / kModelConfigFile).string(), text_);
}

void copy_other_files(const std::string& from, const std::string& to) {
  std::error_code error;
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(from, error)) {
    if (!entry.is_directory() && is_of_the_model(entry.path().filename().string())) {
      found.push_back(entry.path());
    }
  }
  check<IoError>(!error, from, ": cannot be read: ", error.message());
  for (const fs::path& path : found) {
    copy_whole_file(path, fs::path(to) / path.filename());
  }
}

void write_index(const std::string& from,
                 const std::string& to,
                 const std::map<std::string, std::vector<TensorInfo>>& files,
                 bool as_it_was) {
  const fs::path index = fs::path(from) / kIndex;
  std::error_code ignored;
  if (!fs::exists(index, ignored) || (files.size() == 1 && files.contains("model.safetensors"))) {
    return;
  }
  if (as_it_was) {
    copy_whole_file(index, fs::path(to) / kIndex);
    return;
  }
  uint64_t total = 0;
  nlohmann::json map = nlohmann::json::object();  // sorted by name, as others write it
  for (const auto& [name, tensors] : files) {
    for (const TensorInfo& tensor : tensors) {
      total += static_cast<uint64_t>(tensor.shape.numel() * size_of(tensor.dtype));
      map[tensor.name] = name;
    }
  }
  ModelJson json;
  json["metadata"]["total_size"] = total;
  json["weight_map"] = std::move(map);
  write_file_atomically((fs::path(to) / kIndex).string(), written_json(json));
}

}  // namespace tapestry

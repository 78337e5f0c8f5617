#include "parallel_core/dist_checkpointing/adapter_folder.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "autograd/io/crc32c.h"
#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/io/packed_folder.h"
#include "autograd/io/safetensors_directory.h"
#include "autograd/io/strict_json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/config/yaml/value.h"
#include "parallel_core/dist_checkpointing/tensor_files.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kBaseFormat = 1;
constexpr uint64_t kMaxBaseBytes = uint64_t{1} << 20U;
constexpr uint64_t kSampleBytes = 4096;

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// What says which base an adapter belongs to, and what to do about it.
constexpr const char* kNameTheBase =
    "name the folder of the base's weights: model_config.from_hf of a run, --checkpoint of the "
    "programs";

}  // namespace

bool holds_adapter(const std::string& folder) {
  return is_file(fs::path(folder) / kAdapterConfigFile) && !holds_weights(folder) &&
         (is_file(fs::path(folder) / kAdapterWeightsFile) ||
          is_file(fs::path(folder) / kBaseModelFile));
}

std::unique_ptr<TensorSource> open_adapter(const std::string& folder) {
  const fs::path path = fs::path(folder) / kAdapterWeightsFile;
  const bool pickle = is_file(fs::path(folder) / kPickledAdapterFile);
  check<IoError>(is_file(path) || !pickle, folder, ": holds ", kPickledAdapterFile,
                 ", a pickle, which is not read; save the adapter as "
                 "safetensors (save_pretrained with safe_serialization)");
  return std::make_unique<SafetensorsDirectory>(path.string());
}

std::string weights_fingerprint(const std::string& path) {
  const std::unique_ptr<TensorSource> files = open_weights(path);
  uint32_t sum = 0;
  uint64_t total = 0;
  const auto add = [&](const void* data, size_t bytes) { sum = crc32c(data, bytes, sum); };
  std::vector<char> sample(kSampleBytes);
  for (const std::string& name : files->names()) {
    const DType dtype = files->dtype(name);
    const auto bytes = static_cast<uint64_t>(files->shape(name).numel() * size_of(dtype));
    const std::string header = concat(name, " ", name_of(dtype), " ", files->shape(name), "\n");
    add(header.data(), header.size());
    const uint64_t count = std::min(bytes, kSampleBytes);
    for (const uint64_t begin : {uint64_t{0}, (bytes - count) / 2, bytes - count}) {
      if (count > 0) {
        files->read_bytes(name, begin, count, sample.data());
        add(sample.data(), count);
      }
    }
    total += bytes;
  }
  char text[64];
  std::snprintf(text, sizeof(text), "%08x-%llu", sum, static_cast<unsigned long long>(total));
  return text;
}

std::string adapter_base_text(const AdapterBase& base) {
  nlohmann::ordered_json json;
  json["format_version"] = kBaseFormat;
  json["path"] = base.path;
  json["fingerprint"] = base.fingerprint;
  return json.dump(1) + "\n";
}

std::optional<AdapterBase> read_adapter_base(const std::string& folder) {
  const fs::path path = fs::path(folder) / kBaseModelFile;
  if (!is_file(path)) {
    return std::nullopt;
  }
  const InputFile file(path.string());
  const nlohmann::json json = read_strict_json(file, "base", kMaxBaseBytes);
  check<IoError>(
      json.is_object() && json.contains("format_version") && json["format_version"] == kBaseFormat,
      file.path(), ": has no format_version of ", kBaseFormat, ", the one that this program knows");
  for (const char* key : {"path", "fingerprint"}) {
    check<IoError>(json.contains(key) && json[key].is_string(), file.path(), ": ", key,
                   " is missing, or is no text");
  }
  return AdapterBase{.path = json["path"], .fingerprint = json["fingerprint"]};
}

AdapterBase find_adapter_base(const std::string& folder, const std::string& given) {
  const std::optional<AdapterBase> recorded = read_adapter_base(folder);
  AdapterBase base = recorded.value_or(AdapterBase{});
  std::error_code ignored;
  if (!given.empty()) {
    base.path = given;
    check<IoError>(fs::exists(given, ignored), given,
                   ": there is no such file or folder; it is to be the base of the adapter in ",
                   folder);
    return base;
  }
  if (recorded) {
    check<IoError>(base.path.empty() || fs::exists(base.path, ignored), base.path,
                   ": is gone; it is the base of the adapter in ", folder, ", by its ",
                   kBaseModelFile, "; if it has moved, ", kNameTheBase);
    return base;
  }
  const std::string named = read_peft_config(folder).base;
  const std::string config = (fs::path(folder) / kAdapterConfigFile).string();
  check<IoError>(!named.empty(), config,
                 ": base_model_name_or_path is null, so nothing says what the adapter belongs to; ",
                 kNameTheBase);
  for (const fs::path& path : {fs::path(named), fs::path(folder) / named}) {
    if (fs::exists(path, ignored)) {
      base.path = fs::absolute(path).lexically_normal().string();
      return base;
    }
  }
  throw IoError(concat(config, ": base_model_name_or_path is ", named,
                       ", which is no folder here; ", kNameTheBase));
}

std::vector<std::string> base_overrides(const std::string& folder) {
  const std::optional<AdapterBase> base = read_adapter_base(folder);
  if (!base || base->path.empty() || !path_exists(base->path + "/config.json")) {
    return {};
  }
  return {concat("model_config.from_hf=", config::path_text(base->path))};
}

void check_adapter_base(const std::string& folder, const std::string& base) {
  const std::optional<AdapterBase> recorded = read_adapter_base(folder);
  if (!recorded || recorded->fingerprint.empty()) {
    return;
  }
  const std::string found = weights_fingerprint(base);
  check<ValueError>(found == recorded->fingerprint, base, ": is not the base that the adapter in ",
                    folder, " was trained beside: its weights have the fingerprint ", found,
                    ", those of the base ", recorded->fingerprint, " (", recorded->path, ")");
}

}  // namespace tapestry

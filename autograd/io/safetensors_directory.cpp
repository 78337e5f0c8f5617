#include "autograd/io/safetensors_directory.h"

#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>

#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/io/safetensors_header.h"
#include "autograd/io/strict_json.h"
#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

using nlohmann::json;
using safetensors::json_string;

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";
constexpr uint64_t kMaxIndexBytes = 100'000'000;

}  // namespace

SafetensorsDirectory::SafetensorsDirectory(const std::string& path) : path_(path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    if (path.ends_with(".json")) {
      open_index(path);
    } else {
      add(path, nullptr);
    }
    return;
  }
  const fs::path single = fs::path(path) / kSingleFile;
  const fs::path index = fs::path(path) / kIndexFile;
  if (fs::exists(single, ignored)) {
    add(single.string(), nullptr);
  } else {
    check<IoError>(fs::exists(index, ignored), path, ": holds neither ", kSingleFile, " nor ",
                   kIndexFile);
    open_index(index.string());
  }
}

void SafetensorsDirectory::open_index(const std::string& path) {
  const InputFile file(path);
  const json index = read_strict_json(file, "index", kMaxIndexBytes);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    file.fail(0, "weight_map", "missing, or not an object of tensor names to file names");
  }
  std::map<std::string, std::vector<std::string>> names_of_shard;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    if (!shard.is_string() || !is_plain_file_name(shard.get_ref<const std::string&>())) {
      file.fail(0, "weight_map." + json_string(name), shard.dump(),
                " is not the name of a file in the same folder");
    }
    names_of_shard[shard.get<std::string>()].push_back(name);
  }
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  for (const auto& [shard, names] : names_of_shard) {
    add((folder / shard).string(), &names);
  }

  uint64_t total = 0;
  for (const auto& [name, holder] : readers_) {
    const SafetensorsEntry& found = holder->entry(name);
    total += found.end - found.begin;
  }
  const auto metadata = index.find("metadata");
  if (metadata != index.end() && metadata->is_object() && metadata->contains("total_size") &&
      (*metadata)["total_size"] != total) {
    warnings_.push_back(concat(path, ": metadata.total_size is ", (*metadata)["total_size"].dump(),
                               ", the tensors take ", total, " bytes"));
  }
}

void SafetensorsDirectory::add(const std::string& path, const std::vector<std::string>* names) {
  files_.push_back(std::make_unique<SafetensorsReader>(path));
  const SafetensorsReader& file = *files_.back();
  metadata_.insert(file.metadata().begin(), file.metadata().end());
  if (names == nullptr) {
    for (const auto& [name, found] : file.entries()) {
      readers_.emplace(name, &file);
    }
    return;
  }
  for (const std::string& name : *names) {
    check<IoError>(file.contains(name), path, ": no tensor is called ", json_string(name),
                   ", although the index of ", path_, " puts it into this file");
    readers_.emplace(name, &file);
  }
  if (file.entries().size() > names->size()) {
    warnings_.push_back(concat(path, ": ", file.entries().size() - names->size(),
                               " tensors that the index does not name are passed over"));
  }
}

std::vector<std::string> SafetensorsDirectory::names() const {
  std::vector<std::string> out;
  out.reserve(readers_.size());
  for (const auto& [name, holder] : readers_) {
    out.push_back(name);
  }
  return out;
}

const SafetensorsReader& SafetensorsDirectory::reader(const std::string& name) const {
  const auto it = readers_.find(name);
  check<ValueError>(it != readers_.end(), path_, ": no tensor is called ", json_string(name));
  return *it->second;
}

}  // namespace tapestry

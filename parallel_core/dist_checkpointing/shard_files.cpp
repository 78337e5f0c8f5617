#include "parallel_core/dist_checkpointing/shard_files.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

uint64_t bytes_of(const TensorInfo& tensor) {
  return static_cast<uint64_t>(tensor.shape.numel() * size_of(tensor.dtype));
}

std::string shard_name(const std::string& stem, size_t number, size_t count) {
  char ending[64];
  std::snprintf(ending, sizeof(ending), "-%05zu-of-%05zu.safetensors", number, count);
  return stem + ending;
}

}  // namespace

ShardFiles plan_shards(const std::string& stem,
                       const std::vector<TensorInfo>& tensors,
                       uint64_t max_bytes) {
  std::vector<std::vector<TensorInfo>> groups(1);
  std::set<std::string> names;
  uint64_t held = 0;
  uint64_t total = 0;
  for (const TensorInfo& tensor : tensors) {
    check<ValueError>(names.insert(tensor.name).second, "checkpoint: two tensors are called ",
                      tensor.name);
    const uint64_t bytes = bytes_of(tensor);
    if (!groups.back().empty() && held + bytes > max_bytes) {
      groups.emplace_back();
      held = 0;
    }
    groups.back().push_back(tensor);
    held += bytes;
    total += bytes;
  }
  ShardFiles shards;
  if (groups.size() == 1) {
    const std::string name = stem + ".safetensors";
    shards.files.emplace_back(name, plan_safetensors(name, groups.front()));
    return shards;
  }
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = total;
  nlohmann::json map = nlohmann::json::object();  // sorted by name, as others write it
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::string name = shard_name(stem, i + 1, groups.size());
    shards.files.emplace_back(name, plan_safetensors(name, groups[i]));
    for (const TensorInfo& tensor : groups[i]) {
      map[tensor.name] = name;
    }
  }
  index["weight_map"] = std::move(map);
  shards.index = index.dump(2) + "\n";
  return shards;
}

}  // namespace tapestry

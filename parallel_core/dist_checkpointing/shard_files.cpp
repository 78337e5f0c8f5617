#include "parallel_core/dist_checkpointing/shard_files.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "autograd/io/json.h"
#include "autograd/io/mindspore_ckpt.h"
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

PlannedFile plan_safetensors_file(const std::string& name, const std::vector<TensorInfo>& tensors) {
  SafetensorsPlan plan = plan_safetensors(name, tensors);
  PlannedFile file{.name = name, .size = plan.file_size, .fixed = {}, .tensors = {}};
  for (const auto& [tensor, entry] : plan.entries) {
    file.tensors[tensor] = {
        {.first = 0, .begin = plan.begin_of(tensor), .bytes = entry.end - entry.begin}};
  }
  file.fixed.emplace_back(0, std::move(plan.prologue));
  return file;
}

}  // namespace

ShardFiles plan_ckpt(const std::string& stem,
                     const std::vector<TensorInfo>& tensors,
                     uint64_t max_bytes) {
  const std::string name = stem + ".ckpt";
  MindsporeCkptPlan plan =
      plan_mindspore_ckpt(name, tensors, std::min(max_bytes, kMindsporeSliceBytes));
  ShardFiles out;
  out.files.push_back({.name = name,
                       .size = plan.file_size,
                       .fixed = std::move(plan.fixed),
                       .tensors = std::move(plan.ranges)});
  return out;
}

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
    shards.files.push_back(plan_safetensors_file(stem + ".safetensors", groups.front()));
    return shards;
  }
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = total;
  nlohmann::json map = nlohmann::json::object();  // sorted by name, as others write it
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::string name = shard_name(stem, i + 1, groups.size());
    shards.files.push_back(plan_safetensors_file(name, groups[i]));
    for (const TensorInfo& tensor : groups[i]) {
      map[tensor.name] = name;
    }
  }
  index["weight_map"] = std::move(map);
  shards.index_name = stem + ".safetensors.index.json";
  shards.index = index.dump(2) + "\n";
  return shards;
}

}  // namespace tapestry

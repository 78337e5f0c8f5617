// Which files a checkpoint's tensors are divided among, and where in them they lie.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "autograd/io/file_range.h"
#include "autograd/io/safetensors.h"

namespace tapestry {

/// A file before its values are there.
struct PlannedFile {
  std::string name;
  uint64_t size = 0;
  std::vector<std::pair<uint64_t, std::string>> fixed;  ///< what is not values, and where
  std::map<std::string, FileRanges> tensors;
};

struct ShardFiles {
  std::vector<PlannedFile> files;  ///< by name, in order
  std::string index_name;          ///< STEM.safetensors.index.json
  std::string index;               ///< its content; empty for a single file
};

/// "STEM.safetensors", or where the tensors take more than `max_bytes`
/// "STEM-00001-of-0000N.safetensors" and an index, as Hugging Face has them. Tensors keep their
/// order; one that is larger than the limit has a file of its own. ValueError as plan_safetensors.
ShardFiles plan_shards(const std::string& stem,
                       const std::vector<TensorInfo>& tensors,
                       uint64_t max_bytes);

/// "STEM.ckpt", one file whatever it takes. No part of a tensor (plan_mindspore_ckpt) takes more
/// than `max_bytes`. ValueError as there.
ShardFiles plan_ckpt(const std::string& stem,
                     const std::vector<TensorInfo>& tensors,
                     uint64_t max_bytes);

}  // namespace tapestry

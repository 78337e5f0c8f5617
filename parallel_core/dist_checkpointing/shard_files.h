// Dividing tensors among safetensors files that do not get too large.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "autograd/io/safetensors.h"

namespace tapestry {

struct ShardFiles {
  std::vector<std::pair<std::string, SafetensorsPlan>> files;  ///< by name, in order
  std::string index;  ///< content of STEM.safetensors.index.json; empty for a single file
};

/// "STEM.safetensors", or where the tensors take more than `max_bytes`
/// "STEM-00001-of-0000N.safetensors" and an index, as Hugging Face has them. Tensors keep their
/// order; one that is larger than the limit has a file of its own. ValueError as plan_safetensors.
ShardFiles plan_shards(const std::string& stem,
                       const std::vector<TensorInfo>& tensors,
                       uint64_t max_bytes);

}  // namespace tapestry

// A stored model as the folder that the transformers library reads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "autograd/kernels/machine/dtype.h"
#include "interop/export/export_source.h"

namespace tapestry {

struct HfExportOptions {
  /// Of floating tensors and in config.json; empty: as they are stored.
  std::optional<DType> dtype;
  uint64_t max_shard_bytes = 5'000'000'000;  ///< weights beyond this are divided among files
};

/// Makes the folder: model.safetensors or shards and their index; config.json,
/// generation_config.json and the files of tokenizer and chat template as they are, but for the
/// dtype in config.json. Tensors that keep their dtype are copied bit for bit, under the names that
/// Hugging Face has for them, in pieces of a few megabytes. Layers that predict further tokens
/// (mtp_num_layers) are left out of a model that is of a family only without them.
///
/// ValueError for a model that none of its architectures expresses, with the keys that say so; for
/// a value that the dtype cannot hold, with the tensor's name; and for a folder that is there
/// already. IoError for what cannot be read or written. The folder appears under its name when it
/// is complete.
void export_hf(const ExportSource& given, const std::string& path, const HfExportOptions& options);

}  // namespace tapestry

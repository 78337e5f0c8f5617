// A stored model as one GGUF file.
#pragma once

#include <string>
#include <vector>

#include "interop/export/export_source.h"
#include "interop/gguf/gguf_types.h"

namespace tapestry {

struct GgufOptions {
  GgufType type = GgufType::kF32;  ///< of matrices
  std::string name;                ///< general.name; empty: the folder's
};

/// Writes the file and returns what a reader should know of it: where llama.cpp departs from the
/// model's tokenizer or numbers. Tensors go through in pieces of a few megabytes. Layers that
/// predict further tokens (mtp_num_layers) are left out.
///
/// ValueError for a model or a tokenizer that GGUF cannot say, with the keys to change (gguf_model,
/// read_gguf_tokenizer), and for values that the type cannot hold, with the tensor's name; IoError
/// for weights that are not the configuration's, and a file that cannot be written. The file
/// appears under its name when it is complete.
std::vector<std::string> export_gguf(const ExportSource& given,
                                     const std::string& path,
                                     const GgufOptions& options);

}  // namespace tapestry

// The configuration of a model in a GGUF file: the inverse of gguf_model.h.
#pragma once

#include <string>

#include "interop/gguf/gguf_file.h"
#include "interop/gguf/gguf_model.h"
#include "parallel_core/config/config.h"
#include "parallel_core/config/read/model_folder.h"

namespace tapestry {

/// What a file is the model of.
struct GgufReading {
  const architectures::Architecture* family = nullptr;
  std::string config_json;   ///< what the family's config.json would say
  TransformerConfig config;  ///< of that text
  GgufModel model;           ///< what a file of it holds
};

/// Reads general.architecture, the keys of the architecture and the table of tensors. Keys go back
/// as the family's description says; which matrices and biases there are says which tensors the
/// file has, and rope_freqs.weight the llama3 scaling. The result is held against the file: keys
/// and tensors of a file of that configuration are made, and compared with those that it has. Of
/// families with the same architecture the first that agrees counts.
///
/// ValueError, naming file, key or tensor and both values, for an architecture that is not known,
/// keys that are missing, of a wrong type, of another value than they would have to have, or not
/// known, and for tensors that are missing, of another shape, or not known.
GgufReading read_gguf_config(const GgufFile& file, const TokenIds& ids);

}  // namespace tapestry

// Names of tensors and keys that several families have.
#pragma once

#include <string_view>
#include <vector>

#include "interop/architectures/architecture.h"

namespace tapestry::architectures {

/// "model.layers.0.self_attn.q_proj.weight", ...: of Llama and those that were made after it.
const TensorNames& llama_names();
/// What of Llama's names all layers have, and `more` before it, which counts first.
TensorNames llama_names_with(std::vector<NamePair> more,
                             std::string_view experts,
                             std::vector<NamePair> expert);

/// The GGUF form of a Llama, as the architecture of that name.
GgufTables llama_gguf(std::string_view architecture);

/// Keys of every architecture.
std::vector<GgufKey> common_gguf_keys();

}  // namespace tapestry::architectures

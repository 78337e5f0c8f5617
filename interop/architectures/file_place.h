// Where a logical tensor lies in a file: name and orientation of weights on disk.
//
// In safetensors a model that Hugging Face can express as Llama, Qwen2, Mixtral, Qwen2-MoE or GPT-2
// carries exactly its names (GPT-2: fused c_attn, matrices [in, out]); any other the logical names.
// MindSpore's files have the names and the fused matrices of the in-memory modules, which are those
// of MindFormers' parallel_core on one rank; experts have their logical names there. Source: the
// layouts that the transformers library and MindFormers write.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "autograd/tensor/shape.h"
#include "parallel_core/config/config.h"

namespace tapestry {

enum class NameScheme : uint8_t {
  kLogical,
  kLlama,      ///< Llama and Qwen2
  kMixtral,    ///< Llama with "block_sparse_moe.experts.0.w1.weight"
  kQwen2Moe,   ///< Llama with "mlp.experts.0.gate_proj.weight", "mlp.shared_expert.", ...
  kLlamaBare,  ///< these three without "model.", as LlamaModel and its like are saved
  kMixtralBare,
  kQwen2MoeBare,
  kGpt2,              ///< as transformers saves it
  kGpt2Bare,          ///< the same without "transformer.", as in the original files
  kModules,           ///< "language_model.encoder.layers.0.attention.qkv_proj.weight"
  kMindFormersLlama,  ///< of its static graphs: "model.layers.0.attention.wq.weight"
};

/// A scheme, and what of a model its fused matrices depend on.
struct FileNames {
  FileNames() = default;
  /// Not for kModules.
  FileNames(NameScheme of) : scheme(of) {}  // NOLINT(google-explicit-constructor)
  FileNames(NameScheme of, const TransformerConfig& config);

  NameScheme scheme = NameScheme::kLogical;
  int64_t heads_per_group = 1;
  int64_t head_size = 1;
  bool gated = false;       ///< the MLP has w_gate
  bool layer_norm = false;  ///< with gamma and beta
};

/// The place of a whole logical tensor in a tensor of a file. Along the logical tensor's axis 0 it
/// begins at `first`, and if there are blocks, each `block` rows of it lie together, every
/// `block_stride` rows of the file's; transposed: the file has the logical tensor's axes 0 and 1
/// the other way round, and no blocks.
struct FilePlace {
  std::string name;
  Shape shape;  ///< of the file's tensor
  bool transposed = false;
  int64_t first = 0;
  int64_t block = 0;  ///< 0: all rows are one
  int64_t block_stride = 0;

  /// Where row `row` of the logical tensor is in the file's.
  int64_t row(int64_t row) const {
    return block == 0 ? first + row : first + row / block * block_stride + row % block;
  }
};

/// The scheme in which a model of this configuration is written (file_model_type).
NameScheme name_scheme(const TransformerConfig& config);
/// The scheme that the names of a file follow; logical unless some of them are another's.
NameScheme name_scheme(const std::set<std::string>& names);

/// ValueError that names the first tensor that holds the same matrix of all experts of a layer, as
/// some writers store them, and what helps: such files are not read. `source` is the file's name.
void check_experts_are_apart(const std::set<std::string>& names, const std::string& source);

/// A tensor that the scheme does not know has its logical name.
FilePlace file_place(const FileNames& names, const std::string& logical, const Shape& shape);

/// True for what files of the scheme may hold beside weights: masks and frequencies of old ones,
/// optimizer states and counters of MindSpore's.
bool is_constant(NameScheme scheme, const std::string& name);

}  // namespace tapestry

// Where a logical tensor lies in a file: name and orientation of weights on disk.
//
// A model that Hugging Face can express as Llama, Qwen2 or GPT-2 carries exactly its names there
// (GPT-2: fused c_attn, matrices [in, out]); any other the logical names. Source: the layouts that
// the transformers library writes.
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
  kLlama,     ///< Llama and Qwen2
  kGpt2,      ///< as transformers saves it
  kGpt2Bare,  ///< the same without "transformer.", as in the original files
};

/// The place of a whole logical tensor in a tensor of a file. Along the logical tensor's axis 0 it
/// begins at `first`; transposed: the file has the logical tensor's axes 0 and 1 the other way
/// round.
struct FilePlace {
  std::string name;
  Shape shape;  ///< of the file's tensor
  bool transposed = false;
  int64_t first = 0;
};

/// The scheme in which a model of this configuration is written (file_model_type).
NameScheme name_scheme(const TransformerConfig& config);
/// The scheme that the names of a file follow; logical unless some of them are another's.
NameScheme name_scheme(const std::set<std::string>& names);

/// A tensor that the scheme does not know has its logical name.
FilePlace file_place(NameScheme scheme, const std::string& logical, const Shape& shape);

/// True for what files of the scheme may hold beside weights: masks and frequencies of old ones.
bool is_constant(NameScheme scheme, const std::string& name);

}  // namespace tapestry

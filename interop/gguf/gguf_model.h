// What a model is in a GGUF file: its architecture, the keys that describe it, and its tensors.
//
// Architectures, keys and names are those of the families' descriptions (interop/architectures).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "autograd/tensor/shape.h"
#include "interop/architectures/architecture.h"
#include "interop/gguf/gguf_writer.h"
#include "parallel_core/config/config.h"

namespace tapestry {

/// A tensor of the file, and the logical tensors whose rows it has, one behind the other.
struct GgufTensor {
  std::string name;
  Shape shape;
  std::vector<std::string> logical;
  std::vector<Shape> shapes = {};  ///< of the logical tensors
  /// Not 0: the rows of each of so many heads are permuted from halves to pairs (pair_rows), but
  /// for the first `unturned` ones.
  int64_t paired_heads = 0;
  int64_t unturned = 0;
  /// Not 0: the tensor has, of each of so many heads of the logical one, rows from `first_row` on,
  /// as many as its own shape says: [heads, rows, in], or `transposed` [heads, in, rows].
  int64_t split_heads = 0;
  int64_t first_row = 0;
  bool transposed = false;
  /// Vectors and learned positions stay F32 whatever the file's type.
  bool always_f32 = false;
  /// 1 for gains that are stored less 1.
  float added = 0;
  /// The tensor itself where no logical tensor has it: it follows from the configuration.
  std::vector<float> values = {};
};

/// A list of the metadata: the numbers of logical tensors of one each.
struct GgufList {
  std::string key;
  std::vector<std::string> logical;
};

struct GgufModel {
  std::string architecture;  ///< "llama"
  std::vector<architectures::GgufKey> keys;
  std::vector<GgufTensor> tensors;
  std::vector<GgufList> lists = {};
  bool takes_adapters = true;  ///< llama.cpp adds adapters to its matrices
};

/// ValueError for a configuration that no architecture can say: it lists the keys by which it is
/// not one of the nearest, and what each would have to be.
GgufModel gguf_model(const TransformerConfig& config);
/// The same as a model of the family, which has a GGUF form and says the configuration.
GgufModel gguf_model(const architectures::Architecture& family, const TransformerConfig& config);

/// The type of a tensor in a file of `type`: F32 for what always is, F16 for rows of which Q8_0
/// would have part of a block.
GgufType type_in_file(const GgufTensor& tensor, GgufType type);

/// The keys that describe the model, with their values, null for those that are left out.
std::vector<std::pair<std::string, config::Value>> gguf_model_keys(const TransformerConfig& config,
                                                                   const GgufModel& model);

/// general.* and ARCHITECTURE.*; `name` is the model's for readers.
void add_model_metadata(const TransformerConfig& config,
                        const GgufModel& model,
                        const std::string& name,
                        GgufType type,
                        GgufMetadata& metadata);

/// Which row of q or k of the model, whose rotation turns channels (j, j + d/2) of a head of `d`,
/// is row `row` of the file, where they are (2j, 2j + 1). The first `unturned` rows of a head,
/// which `d` does not count, stay.
int64_t pair_rows(int64_t row, int64_t d, int64_t unturned = 0);
/// Which row of the file is row `row` of the model.
int64_t unpair_rows(int64_t row, int64_t d, int64_t unturned = 0);

}  // namespace tapestry

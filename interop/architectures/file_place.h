// Where a logical tensor lies in a file: name and orientation of weights on disk.
//
// In safetensors a model of a known family carries exactly the family's names, fused matrices and
// orientation; any other the logical names.
// MindSpore's files have the names and the fused matrices of the in-memory modules, which are those
// of MindFormers' parallel_core on one rank; experts have their logical names there. Source: the
// layouts that the transformers library and MindFormers write.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/tensor/shape.h"
#include "parallel_core/config/config.h"

namespace tapestry {

namespace architectures {
struct TensorNames;
}

/// The rules by which a file's names are made.
class NameScheme {
 public:
  static const NameScheme kLogical;
  /// "language_model.encoder.layers.0.attention.qkv_proj.weight"
  static const NameScheme kModules;
  /// Of MindFormers' static graphs: "model.layers.0.attention.wq.weight".
  static const NameScheme kMindFormersLlama;

  constexpr NameScheme() = default;
  /// Of a family's files; `bare`: of a model without its output layer, whose names lack the part
  /// that all others are of ("model.").
  explicit constexpr NameScheme(const architectures::TensorNames* table, bool bare = false)
      : table_(table), bare_(bare) {}

  /// nullptr for what is no family's.
  const architectures::TensorNames* table() const { return table_; }
  bool bare() const { return bare_; }
  /// The same for files that hold the matrices of all experts of a layer in two tensors,
  /// gate_up_proj [E, 2F, H], gates first, and down_proj [E, H, F], as versions 5 of transformers
  /// have them in memory. `ending` is what both names end with behind that: "" or ".weight".
  NameScheme packed(std::string_view ending) const {
    NameScheme out = *this;
    out.packed_ = ending.empty() ? Packed::kPlain : Packed::kWeight;
    return out;
  }
  bool is_packed() const { return packed_ != Packed::kNo; }
  std::string_view packed_ending() const {
    return packed_ == Packed::kWeight ? std::string_view(".weight") : std::string_view();
  }
  /// Matrices of layers are [in, out].
  bool transposed() const;
  /// What names have before those of a bare file: "model."; empty where there is nothing.
  std::string_view part() const;

  bool operator==(const NameScheme&) const = default;

 private:
  enum class Kind : uint8_t { kLogical, kModules, kMindFormersLlama };
  enum class Packed : uint8_t { kNo, kPlain, kWeight };
  explicit constexpr NameScheme(Kind kind) : kind_(kind) {}

  const architectures::TensorNames* table_ = nullptr;
  bool bare_ = false;
  Packed packed_ = Packed::kNo;
  Kind kind_ = Kind::kLogical;
};

inline constexpr NameScheme NameScheme::kLogical{Kind::kLogical};
inline constexpr NameScheme NameScheme::kModules{Kind::kModules};
inline constexpr NameScheme NameScheme::kMindFormersLlama{Kind::kMindFormersLlama};

/// A scheme, and what of a model its fused matrices depend on.
struct FileNames {
  FileNames() = default;
  /// Not for kModules.
  FileNames(NameScheme of) : scheme(of) {}  // NOLINT(google-explicit-constructor)
  FileNames(NameScheme of, const TransformerConfig& config);
  /// Those of a file that has such names.
  FileNames(const std::set<std::string>& names, const TransformerConfig& config);

  NameScheme scheme = NameScheme::kLogical;
  /// Of logical names behind "layers.I.", with their last dot: the rows of all ranks.
  std::map<std::string, int64_t, std::less<>> rows;
  int64_t linear_keys = 1;  ///< linear_num_key_heads
  bool gates = false;       ///< attention_output_gate
  int64_t heads_per_group = 1;
  int64_t head_size = 1;
  bool gated = false;   ///< the MLP has w_gate
  int64_t experts = 1;  ///< of a layer
  int64_t heads = 1;
  bool latent = false;       ///< multi-latent attention, whose queries are a matrix of their own
  bool layer_norm = false;   ///< with gamma and beta
  int64_t layers = 0;        ///< of the model; 0: not known
  int64_t ahead = 0;         ///< layers behind these that predict further tokens (mtp_num_layers)
  bool more_layers = false;  ///< the file may have more of these, which are passed over
  bool tied = false;         ///< the output matrix is the table of embeddings
  bool experts_beside_dense = false;  ///< moe_beside_dense

  /// What a layer's queries, keys and values are in memory.
  struct LayerHeads {
    int64_t heads_per_group = 1;
    int64_t head_size = 1;
    int64_t keys = 1;    ///< 0: it has another layer's
    int64_t values = 1;  ///< 0: the same, or its keys'
  };
  std::vector<LayerHeads> of_layers = {};  ///< empty: all are alike, as said above
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
  /// In place of all of these: the logical tensor's elements lie at offset + row * row_stride +
  /// column * column_stride of the file's.
  struct Strides {
    int64_t offset = 0;
    int64_t row = 1;
    int64_t column = 1;
  };
  std::optional<Strides> strides = std::nullopt;

  /// Where row `row` of the logical tensor is in the file's.
  int64_t row(int64_t row) const {
    return block == 0 ? first + row : first + row / block * block_stride + row % block;
  }
};

/// The scheme in which a model of this configuration is written (file_model_type).
NameScheme name_scheme(const TransformerConfig& config);
/// That of a family's files. ValueError for a type that is not known.
NameScheme name_scheme_of(std::string_view model_type);
/// The scheme that the names of a file follow: of the families' that whose table knows the most of
/// them. Logical unless some of them are another's.
NameScheme name_scheme(const std::set<std::string>& names);

/// The numbers that a file of the family holds beside the weights of such a model, by the names of
/// their tensors, which have no axes.
std::map<std::string, double> fixed_numbers(const FileNames& names);

/// A tensor that the scheme does not know has its logical name.
FilePlace file_place(const FileNames& names, const std::string& logical, const Shape& shape);

/// Whether a layer's experts are one tensor for each of their matrices, whichever files hold them:
/// gate_up_proj [E, in, out].
bool stacks_experts(const NameScheme& scheme);

/// Under which further names files of the scheme hold a tensor once more: each layer that predicts
/// further tokens has the tables of the model.
std::vector<std::string> further_names(const FileNames& names, const std::string& logical);

/// The name of the matrix of such a layer, from 0 behind the model's own, that no other layer has.
std::string joining_matrix_name(const FileNames& names, int64_t depth);

/// True for what files of the scheme may hold beside weights: masks and frequencies of old ones,
/// optimizer states and counters of MindSpore's.
bool is_constant(NameScheme scheme, const std::string& name);
/// The same, and for what a file may hold of layers behind the model's own: those that the model
/// has not, and of those that it has the tables which are the model's.
bool is_constant(const FileNames& names, const std::string& name);

}  // namespace tapestry

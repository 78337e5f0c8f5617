// The matrices of a model as its configuration describes them, in one table: parameter counts,
// estimates, adapters and files ask it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "autograd/tensor/shape.h"
#include "parallel_core/config/config.h"

namespace tapestry {

/// What a tensor of a model is for.
enum class MatrixRole : uint8_t {
  kEmbedding,
  kPositions,
  kHead,   ///< an output matrix of its own; a tied one is the embedding
  kScore,  ///< a head that gives each token one value
  kNorm,
  kQuery,
  kKey,
  kValue,
  kOutput,  ///< of attention
  kRouter,
  kSharedExpertGate,
  kGate,  ///< of an MLP, a shared expert or a routed expert
  kUp,
  kDown,
  kAhead,          ///< joins a hidden state and the embedding of a token ahead (mtp_num_layers)
  kMixing,         ///< of a layer without attention: what makes its state, its gates and its decay
  kConvolution,    ///< taps of a short convolution, [channels, 1, taps]
  kVector,         ///< no operand of a product: sinks of attention, numbers of an activation
  kPerLayerTable,  ///< rows of per-layer embeddings, of all layers side by side
  kPerLayer,       ///< makes per-layer embeddings of the first one, gates or takes them
  kStreams,        ///< makes the gates of hyper-connections of the residual streams
};

/// A weight of the model with its bias.
struct ModelMatrix {
  std::string name;    ///< logical, without ".weight": "layers.0.attention.wq"
  std::string module;  ///< path in memory of the module that holds it: "...attention.qkv_proj"
  MatrixRole role = MatrixRole::kNorm;
  Shape shape;  ///< [out, in]; of a norm [size]
  bool has_bias = false;
  int64_t layer = -1;  ///< from 0; -1 outside of layers
  /// Of routed experts, which are alike: how many there are. Then this is the first one's.
  int64_t experts = 0;
  /// The axis of the weight along which ranks divide it: those of the tensor-parallel group, of an
  /// expert those that share it. Empty: every rank has all of it.
  std::optional<int64_t> sharded_axis = std::nullopt;
  int64_t unit = 1;            ///< along that axis, what stays together: the channels of a head
  bool quantizable = false;    ///< may be blocks (lora_config.base_dtype: q8_0, q4_0)
  bool takes_adapter = false;  ///< lora_config can adapt it

  bool is_norm() const { return role == MatrixRole::kNorm; }
  /// Whether it is the operand of a matrix product.
  bool is_matrix() const {
    return !is_norm() && role != MatrixRole::kVector && role != MatrixRole::kConvolution &&
           role != MatrixRole::kPerLayerTable && role != MatrixRole::kScore;
  }
};

/// Ranks over which a model's matrices are divided, and those of its experts.
struct ModelShares {
  int64_t tensor = 1;
  int64_t expert = 1;         ///< ranks with other experts
  int64_t expert_tensor = 1;  ///< ranks with other slices of the same
};

/// Widths of what a layer computes with: of one rank's share of its matrices.
struct LayerWidths {
  int64_t heads = 0;
  int64_t groups = 0;    ///< of keys and values; a rank has at least one
  int64_t channels = 0;  ///< of a head
  int64_t queries = 0;   ///< heads * channels
  int64_t keys = 0;      ///< groups * channels; 0 of a layer that has another's (keys_from)
  int64_t value_channels = 0;
  int64_t values = 0;   ///< groups * value_channels, or 0 as keys
  int64_t context = 0;  ///< heads * value_channels: what attention gives
  int64_t ffn = 0;      ///< inside the MLP
  int64_t expert_ffn = 0;
  int64_t shared_ffn = 0;  ///< inside the shared expert; 0: there is none
  int64_t gates = 1;       ///< 2 where the first matrix of an MLP gives gate and up
};

/// Of a layer, from 0. ValueError for sizes whose products exceed 2^53.
LayerWidths layer_widths(const TransformerConfig& config,
                         int64_t layer,
                         const ModelShares& shares = {});

/// Widths of what a layer without attention computes with, of one rank's share.
struct MixerWidths {
  // linear_attention; of mamba the groups and the heads.
  int64_t key_heads = 0;
  int64_t value_heads = 0;
  int64_t key_channels = 0;    ///< of a head; of mamba the numbers of a state for each channel
  int64_t value_channels = 0;  ///< of a head
  int64_t keys = 0;            ///< key_heads * key_channels
  int64_t values = 0;          ///< value_heads * value_channels; of conv the channels
  int64_t convolved = 0;       ///< channels of the short convolution
  int64_t projected = 0;       ///< rows of the matrices that read the layer's input
  int64_t state = 0;           ///< numbers that a text has as its state, without the convolution's
  int64_t taps = 0;            ///< of the convolution
};

/// ValueError for sizes whose products exceed 2^53. All 0 for attention.
MixerWidths mixer_widths(const TransformerConfig& config,
                         MixerKind mixer,
                         const ModelShares& shares = {});

/// Residual streams that blocks read from and write to: 1 without hyper-connections.
int64_t residual_streams(const TransformerConfig& config);

/// What the feed-forward block of a layer is.
enum class LayerKind : uint8_t { kDense, kMixture };

LayerKind layer_kind(const TransformerConfig& config, int64_t layer);

/// Layers that have the same matrices and the same work: how many, and the first of them.
struct AlikeLayers {
  int64_t layer = 0;
  int64_t count = 0;
};
/// Of `count` layers from `first` on, in the order in which the first of each kind comes.
std::vector<AlikeLayers> alike_layers(const TransformerConfig& config,
                                      int64_t first,
                                      int64_t count);
/// Of the whole model.
std::vector<AlikeLayers> alike_layers(const TransformerConfig& config);

/// Of one layer, in the order of the modules in memory: norms, router, matrices. ValueError as
/// layer_widths.
std::vector<ModelMatrix> layer_matrices(const TransformerConfig& config, int64_t layer);

/// The embeddings, of tokens, of positions and of tokens in each layer.
std::vector<ModelMatrix> matrices_before_layers(const TransformerConfig& config);
/// The last norm and an output matrix of its own, or a score head.
std::vector<ModelMatrix> matrices_after_layers(const TransformerConfig& config);

/// Whether the last stage of a pipeline needs the table of embeddings as well: as the output
/// matrix, or to read tokens ahead.
bool needs_table_at_end(const TransformerConfig& config);

/// Of the layers that predict further tokens (mtp_num_layers): of each its two norms, the matrix
/// that joins what they give, its last norm and those of the layer itself.
std::vector<ModelMatrix> matrices_ahead(const TransformerConfig& config);

/// All of the model.
std::vector<ModelMatrix> model_matrices(const TransformerConfig& config);

/// Shape of a rank's part of the weight: of as many units as the rank with the most has.
Shape shape_on_rank(const ModelMatrix& matrix, const ModelShares& shares);
/// Elements of that and of its bias, of one expert; in double so that absurd sizes do no harm.
double elements_on_rank(const ModelMatrix& matrix, const ModelShares& shares = {});
/// Of the weight alone.
double weight_elements(const ModelMatrix& matrix, const ModelShares& shares = {});

}  // namespace tapestry

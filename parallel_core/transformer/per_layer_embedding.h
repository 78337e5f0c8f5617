// A second embedding of each token, one part of it for each layer.
//
// Source: Gemma 3n and Gemma 4 as in transformers (hidden_size_per_layer_input).
#pragma once

#include <cstdint>
#include <string>

#include "nn/module.h"
#include "nn/module_call.h"
#include "parallel_core/config/config.h"
#include "parallel_core/tensor_parallel/layers.h"
#include "parallel_core/transformer/norm.h"

namespace tapestry {

/// Of a token t with embedding x0, for each layer l of L, with p = per_layer_embedding_size:
///
///   e_l = (norm(h^-1/2 W_l x0) + p^1/2 table[t, l]) / 2^1/2,
///
/// W [L p, h] on every tensor-parallel rank, the table [per_layer_vocab_size, L p] divided over
/// them by rows like that of the tokens, one gain [p] for all layers. The first stage of a pipeline
/// has all of it; its result travels with the hidden states.
class PerLayerEmbedding final : public nn::Module, public nn::Callable<PerLayerEmbedding> {
 public:
  PerLayerEmbedding(const TransformerConfig& config, bool sequence_first);
  explicit PerLayerEmbedding(const AllConfig& config)
      : PerLayerEmbedding(config.model_config, is_sequence_first(config)) {}

  std::string type_name() const override { return "PerLayerEmbedding"; }
  std::string extra_repr() const override { return concat(layers_, " layers of ", size_); }
  /// ids [B, S], or [S, B] as hidden states are; x0 [.., h], with sequence parallelism the rank's
  /// piece of the sequence. [.., L p], as x0, in the residual stream's dtype.
  Tensor forward(const Tensor& ids, const Tensor& x0) const;

 private:
  int64_t layers_;
  int64_t size_;
  double projection_scale_;
  Precision precision_;
  VocabParallelEmbedding* table_;
  ColumnParallelLinear* projection_;
  ParallelNorm* norm_;
};

/// A linear layer that every tensor-parallel rank has whole, with its adapters: NAME.weight [out,
/// in].
ParallelLinearSpec replicated_spec(const TransformerConfig& config,
                                   const TensorParallelLayout& layout,
                                   const std::string& name,
                                   int64_t in,
                                   int64_t out,
                                   const InitMethod& init,
                                   bool sequence_first);

}  // namespace tapestry

// Mamba-2. Source: Dao and Gu 2024, arXiv:2405.21060; the layer as Granite 4 has it.
#pragma once

#include <string>

#include "autograd/ops/transformer/state_space.h"
#include "parallel_core/transformer/mixers/mixer_parts.h"
#include "parallel_core/transformer/token_mixer.h"

namespace tapestry {

/// One projection gives the gate z, the heads' input x, B and C of each group of heads (x, B and C
/// through a short convolution with silu), and each head's time step. See state_space(). What heads
/// give is multiplied by silu(z), normed over each group, and projected.
///
/// The rows of in_proj are z, x, B, C and dt. Tensor-parallel ranks have heads, with the groups
/// that belong to them; where there is one group, every rank has its B and C, and norms sum over
/// ranks. Where context-parallel ranks divide sequences, states go from rank to rank in the order
/// of the sequence.
class Mamba2 final : public TokenMixer {
 public:
  /// `layer_number` counts from 1. ValueError if the ranks do not divide the heads, or the groups
  /// unless that is one.
  Mamba2(const TransformerConfig& config, int64_t layer_number, bool sequence_first);
  Mamba2(const AllConfig& config, int64_t layer_number)
      : Mamba2(config.model_config, layer_number, is_sequence_first(config)) {}

  std::string type_name() const override { return "Mamba2"; }
  std::string extra_repr() const override;
  using TokenMixer::forward;
  OutputAndBias forward(const Tensor& x,
                        const AttentionContext& context,
                        const LayerPass& pass) override;

 private:
  Tensor mix(const Tensor& xbc,
             const Tensor& dt,
             const AttentionContext& context,
             const LayerPass& pass) const;
  Tensor mix_cached(const Tensor& projected, const CachedStep& cached) const;
  Tensor normalize(const Tensor& y, const Tensor& z) const;

  int64_t layer_;  // from 0
  bool sequence_first_;
  StateSpaceOptions sizes_;  // of this rank
  int64_t total_heads_;
  int64_t first_head_;
  double norm_epsilon_;
  bool norm_is_divided_;  // over the tensor-parallel ranks
  TensorParallelLayout layout_;
  ContextParallelLayout context_layout_;
  ColumnParallelLinear* in_proj_;
  ConvolutionTaps* conv_;
  nn::Parameter* decay_;  // A_log
  nn::Parameter* skip_;   // D
  nn::Parameter* dt_bias_;
  nn::Parameter* gain_;
  RowParallelLinear* out_proj_;
};

}  // namespace tapestry

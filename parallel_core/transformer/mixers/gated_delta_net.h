// Gated delta net: linear attention whose state forgets and overwrites. Source: Yang et al. 2024,
// arXiv:2412.06464; the layer as Qwen3-Next has it.
#pragma once

#include <string>

#include "autograd/ops/transformer/gated_delta_rule.h"
#include "parallel_core/transformer/mixers/mixer_parts.h"
#include "parallel_core/transformer/token_mixer.h"

namespace tapestry {

/// One projection gives queries, keys and values (through a short convolution with silu), the gate
/// z, and for each value head two numbers: how much of the state is overwritten, and how much of it
/// is forgotten. See gated_delta_rule(). What heads give is normed, each by itself with one gain
/// for all, multiplied by silu(z), and projected.
///
/// The rows of in_proj are queries, keys and values of all heads, z, b and a. Tensor-parallel ranks
/// have key heads with the value heads that belong to them. Where context-parallel ranks divide
/// sequences, states go from rank to rank in the order of the sequence.
class GatedDeltaNet final : public TokenMixer {
 public:
  /// `layer_number` counts from 1. ValueError if the ranks do not divide the key heads.
  GatedDeltaNet(const TransformerConfig& config, int64_t layer_number, bool sequence_first);
  GatedDeltaNet(const AllConfig& config, int64_t layer_number)
      : GatedDeltaNet(config.model_config, layer_number, is_sequence_first(config)) {}

  std::string type_name() const override { return "GatedDeltaNet"; }
  std::string extra_repr() const override;
  using TokenMixer::forward;
  OutputAndBias forward(const Tensor& x,
                        const AttentionContext& context,
                        const LayerPass& pass) override;

 private:
  Tensor mix(const Tensor& qkv,
             const Tensor& b,
             const Tensor& a,
             const AttentionContext& context,
             const LayerPass& pass) const;
  Tensor mix_cached(const Tensor& projected, const CachedStep& cached) const;

  int64_t layer_;  // from 0
  bool sequence_first_;
  GatedDeltaOptions heads_;  // of this rank
  int64_t total_values_;     // channels of all ranks' values
  int64_t first_value_;
  double beta_scale_;
  double norm_epsilon_;
  Precision precision_;
  ContextParallelLayout context_layout_;
  ColumnParallelLinear* in_proj_;
  ConvolutionTaps* conv_;
  nn::Parameter* decay_;  // A_log
  nn::Parameter* dt_bias_;
  nn::Parameter* gain_;
  RowParallelLinear* out_proj_;
};

}  // namespace tapestry

// Multi-head latent attention. Source: DeepSeek-AI 2024, DeepSeek-V2, arXiv:2405.04434,
// section 2.1.
#pragma once

#include <string>

#include "parallel_core/row_turns.h"
#include "parallel_core/transformer/attention.h"
#include "parallel_core/transformer/norm.h"

namespace tapestry {

/// Keys and values of all heads are made of one short vector of each token, c = norm(kv_a(x)) of
/// kv_lora_rank channels, and one rotated key r of qk_pos_emb_head_dim channels that all heads
/// share; queries of another short vector with q_lora_rank, or of x. A head has qk_head_dim
/// channels of its own and those that are rotated; its values have v_head_dim.
///
/// Matrices that make the short vectors are on every tensor-parallel rank; those that make heads of
/// them are divided by heads. The norms' epsilon is 1e-6, whatever that of the others is.
///
/// With a cache a token keeps c and r alone. Queries are then multiplied by the matrix that would
/// have made keys of c, and what is attended, a sum of c, by that which makes values. Inside a
/// OneOrderScope, and in exact mode, heads' keys and values are kept, as training makes them.
class MultiLatentAttention final : public TokenMixer, public HasRowTurns {
 public:
  /// `layer_number` counts from 1. ValueError if the ranks do not divide the heads.
  MultiLatentAttention(const TransformerConfig& config, int64_t layer_number, bool sequence_first);
  MultiLatentAttention(const AllConfig& config, int64_t layer_number)
      : MultiLatentAttention(config.model_config, layer_number, is_sequence_first(config)) {}

  std::string type_name() const override { return "MultiLatentAttention"; }
  std::string extra_repr() const override;
  /// Of each head's queries the rows without and with rotation, of what makes keys and values the
  /// rows of both, and of what makes c and r the rows of either.
  RowTurns row_turns() const override;
  using TokenMixer::forward;
  OutputAndBias forward(const Tensor& x,
                        const AttentionContext& context,
                        const LayerPass& pass) override;
  CoreAttention* core_attention() override { return &core_; }
  /// The channels without rotation take the root of the factor in queries and in keys; those with
  /// rotation take it in queries alone, since all heads share their key.
  std::vector<RowFactors> score_factors(const std::vector<double>& factors) const override;

 private:
  // What attention is made of, before heads have keys and values: queries [B, n, S, .] without and
  // with rotation, c [.., kv_lora_rank] as it lies outside of products, and r [B, 1, S, .].
  struct Parts {
    Tensor q_plain, q_rotated, latent, k_rotated;
    int64_t first = 0;  // axes of the whole sequences
    int64_t second = 0;
  };

  // Of the heads, [B, n, S, .].
  struct Operands {
    Tensor q, k, v;
  };

  Parts make_parts(const Tensor& x, const AttentionContext& context, const LayerPass& pass) const;
  Operands of_heads(const Parts& parts) const;
  Tensor attend(const Parts& parts, const AttentionContext& context) const;
  Tensor attend_cached(const Parts& parts, const CachedStep& step) const;
  Tensor heads(const Tensor& x, int64_t count, int64_t channels) const;
  Tensor whole_sequences(const Tensor& piece) const;
  void report(const char* name, Tensor& value) const;

  int64_t layer_;  // from 0
  bool sequence_first_;
  int64_t rank_;     // of c
  int64_t plain_;    // channels of a head's queries and keys
  int64_t rotated_;  // and those with rotation
  int64_t values_;
  Precision precision_;
  TensorParallelLayout layout_;
  ContextParallelLayout context_layout_;
  HeadShare share_;
  int64_t total_heads_;
  CoreAttention core_;
  ColumnParallelLinear* q_proj_ = nullptr;  // in place of the next three
  ColumnParallelLinear* q_a_proj_ = nullptr;
  ParallelNorm* q_a_norm_ = nullptr;
  ColumnParallelLinear* q_b_proj_ = nullptr;
  ColumnParallelLinear* kv_a_proj_;
  ParallelNorm* kv_a_norm_;
  ColumnParallelLinear* kv_b_proj_;
  RowParallelLinear* out_proj_;
};

}  // namespace tapestry

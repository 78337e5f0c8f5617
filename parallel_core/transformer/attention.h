// Self-attention of a parallel model.
#pragma once

#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/context_parallel/context_parallel_layout.h"
#include "parallel_core/tensor_parallel/layers.h"
#include "parallel_core/transformer/core_attention.h"
#include "parallel_core/transformer/head_norm.h"
#include "parallel_core/transformer/recompute_policy.h"
#include "parallel_core/transformer/token_mixer.h"

namespace tapestry {

/// Fused projection to queries, keys and values, attention per head, output projection.
///
/// The rows of qkv_proj are ordered by key/value group: the queries of the group, with
/// attention_output_gate their gates, the group's key, its value. A layer with the keys and values
/// of another (num_kv_shared_layers) has queries alone; with full_attention_value_is_key the value
/// is the key before its norm and rotation. With v_layernorm values are divided by their root mean
/// square. What a head gives is multiplied
/// by sigmoid(its gate) before the output projection (Qwen3-Next). Hidden states are [B, S, H] or,
/// with data_layout SBH, [S, B, H].
///
/// Each rank of the tensor-parallel group has its share of the groups. Where there are more ranks
/// than groups, several ranks hold the same key and value and share the queries of their group;
/// what each computes of the gradient of that key and value is then a share of the sum
/// (finalize_model_grads). Where context-parallel ranks divide the sequences, each has its own
/// queries and they share keys and values (context_parallel/attention.h).
class ParallelAttention final : public TokenMixer {
 public:
  /// `layer_number` counts from 1. ValueError if the heads are not a multiple of the groups, or the
  /// ranks divide neither heads and groups nor, where there are more ranks than groups, the heads
  /// of a group.
  ParallelAttention(const TransformerConfig& config, int64_t layer_number, bool sequence_first);
  ParallelAttention(const AllConfig& config, int64_t layer_number)
      : ParallelAttention(config.model_config, layer_number, is_sequence_first(config)) {}

  std::string type_name() const override { return "ParallelAttention"; }
  std::string extra_repr() const override;
  using TokenMixer::forward;
  OutputAndBias forward(const Tensor& x,
                        const AttentionContext& context,
                        const LayerPass& pass) override;
  CoreAttention* core_attention() override { return &core_; }
  /// The key of a group takes the root of the smallest factor of its heads, and the queries of each
  /// head what is missing then. A key that is a value too, or that other layers have, is left
  /// alone: the queries take all.
  std::vector<RowFactors> score_factors(const std::vector<double>& factors) const override;

 private:
  Tensor heads(const Tensor& x) const;
  Tensor normed_values(const Tensor& v, const LayerPass& pass) const;
  void norm_heads(Tensor& q, Tensor& k, const LayerPass& pass) const;
  void rotate(Tensor& q, Tensor& k, const AttentionContext& context, const LayerPass& pass) const;
  void share_keys(Tensor& k,
                  Tensor& v,
                  const AttentionContext& context,
                  const LayerPass& pass) const;
  Tensor temperatures(const AttentionContext& context, int64_t tokens) const;

  int64_t layer_;  // from 0
  bool sequence_first_;
  int64_t total_heads_;     // of all ranks
  int64_t first_head_ = 0;  // of this rank
  int64_t num_heads_ = 0;   // of this rank, and so are the groups
  int64_t num_groups_ = 0;
  int64_t total_groups_;
  int64_t first_group_ = 0;
  int64_t head_dim_;
  std::optional<int64_t> keys_from_;  // the layer whose keys and values it has
  bool gives_keys_;                   // another layer has its
  bool value_is_key_;
  bool norms_values_;
  double norm_epsilon_;
  bool rotates_;
  bool gates_;
  bool norms_after_rotary_;
  std::optional<double> clip_;
  double temperature_beta_;  // 0: queries are not scaled by their positions
  int64_t temperature_length_;
  Precision precision_;
  ContextParallelLayout context_layout_;
  CoreAttention core_;
  ColumnParallelLinear* qkv_proj_;
  nn::UnaryModule* q_norm_ = nullptr;
  nn::UnaryModule* k_norm_ = nullptr;
  RowParallelLinear* out_proj_;
};

}  // namespace tapestry

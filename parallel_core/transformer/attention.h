// Self-attention of a parallel model.
#pragma once

#include <memory>
#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/context_parallel/context_parallel_layout.h"
#include "parallel_core/pipeline_parallel/parallel_model.h"
#include "parallel_core/tensor_parallel/layers.h"
#include "parallel_core/transformer/kv_cache.h"
#include "parallel_core/transformer/norm.h"
#include "parallel_core/transformer/recompute_policy.h"
#include "parallel_core/transformer/rotary_pos_embedding.h"

namespace tapestry {

/// What attention takes of a micro-batch: positions, and which keys a query may see besides what
/// causality and the window allow. Tensors as in ModelInput, each possibly undefined.
struct AttentionContext {
  RotaryEmbedding* rotary = nullptr;  ///< null: no rotation
  Tensor position_ids = {};
  Tensor mask = {};
  Tensor document_starts = {};
  const CachedStep* cached = nullptr;  ///< see ModelInput
};
inline AttentionContext attention_context(const ModelInput& input, RotaryEmbedding* rotary) {
  return {rotary, input.position_ids, input.attention_mask, input.document_starts, input.cached};
}

/// Fused projection to queries, keys and values, attention per head, output projection.
///
/// The rows of qkv_proj are ordered by key/value group: the queries of the group, its key, its
/// value. Hidden states are [B, S, H] or, with data_layout SBH, [S, B, H].
///
/// Each rank of the tensor-parallel group has its share of the groups. Where there are more ranks
/// than groups, several ranks hold the same key and value and share the queries of their group;
/// what each computes of the gradient of that key and value is then a share of the sum
/// (finalize_model_grads). Where context-parallel ranks divide the sequences, each has its own
/// queries and they share keys and values (context_parallel/attention.h).
class ParallelAttention final : public nn::Module, public nn::Callable<ParallelAttention> {
 public:
  /// `layer_number` counts from 1. ValueError if the heads are not a multiple of the groups, or the
  /// ranks divide neither heads and groups nor, where there are more ranks than groups, the heads
  /// of a group.
  ParallelAttention(const TransformerConfig& config, int64_t layer_number, bool sequence_first);

  std::string type_name() const override { return "ParallelAttention"; }
  std::string extra_repr() const override;
  /// x -> output of the same shape and the bias the layer adds (undefined if none).
  OutputAndBias forward(const Tensor& x,
                        const AttentionContext& context,
                        const LayerPass& pass = {});

 private:
  Tensor heads(const Tensor& x) const;
  Tensor attend(const Tensor& q,
                const Tensor& k,
                const Tensor& v,
                const AttentionContext& context) const;
  Tensor attend_cached(const Tensor& q,
                       const Tensor& k,
                       const Tensor& v,
                       const CachedStep& step) const;

  int64_t layer_;  // from 0
  bool sequence_first_;
  int64_t total_heads_;  // of all ranks
  int64_t first_head_;   // of this rank
  int64_t num_heads_;    // of this rank, and so are the groups
  int64_t num_groups_;
  int64_t total_groups_;
  int64_t first_group_;
  int64_t head_dim_;
  bool mask_alone_;  // what the mask lets through is visible, also behind the query
  std::optional<int64_t> window_left_;
  double scale_;
  std::vector<double> alibi_slopes_;  // of this rank's heads
  double score_divisor_;              // of the scores before their softmax, which makes up for it
  double dropout_;
  Precision precision_;
  ContextParallelLayout context_layout_;
  ColumnParallelLinear* qkv_proj_;
  ParallelNorm* q_norm_ = nullptr;
  ParallelNorm* k_norm_ = nullptr;
  RowParallelLinear* out_proj_;
};

}  // namespace tapestry

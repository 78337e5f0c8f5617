// Attention of queries, keys and values that are there already: what all kinds of attention share.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "nn/parameter.h"
#include "parallel_core/config/config.h"
#include "parallel_core/context_parallel/context_parallel_layout.h"
#include "parallel_core/pipeline_parallel/parallel_model.h"
#include "parallel_core/precision.h"
#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"
#include "parallel_core/transformer/kv_cache.h"
#include "parallel_core/transformer/rotary_pos_embedding.h"

namespace tapestry {

/// Keys [B, groups, S, D] and values of a layer, as attention reads them.
struct KeysAndValues {
  Tensor k;
  Tensor v;
};

/// What attention takes of a micro-batch: positions, and which keys a query may see besides what
/// causality and the window allow. Tensors as in ModelInput, each possibly undefined.
struct AttentionContext {
  RotaryEmbedding* rotary = nullptr;          ///< null: no rotation
  RotaryEmbedding* sliding_rotary = nullptr;  ///< of layers with a window; null: as all
  Tensor position_ids = {};
  Tensor mask = {};
  Tensor document_starts = {};
  const CachedStep* cached = nullptr;  ///< see ModelInput
  /// Of this pass, by layer from 0: what layers with num_kv_shared_layers take and others leave
  /// there for them. Null where no layer does.
  std::map<int64_t, KeysAndValues>* shared_keys = nullptr;
  TensorList per_layer = {};  ///< by layer: its per-layer embeddings; empty without
};
inline AttentionContext attention_context(const ModelInput& input, RotaryEmbedding* rotary) {
  return {.rotary = rotary,
          .position_ids = input.position_ids,
          .mask = input.attention_mask,
          .document_starts = input.document_starts,
          .cached = input.cached};
}

/// What a rank has of the heads and of the groups of keys and values.
struct HeadShare {
  int64_t first_head = 0;
  int64_t heads = 0;
  int64_t first_group = 0;
  int64_t groups = 0;
  int64_t copies = 1;  ///< ranks that hold the same groups
};

/// ValueError if the heads are not a multiple of the groups, or the ranks divide neither heads and
/// groups nor, where there are more ranks than groups, the heads of a group. `layer` from 0.
HeadShare head_share(const TransformerConfig& config,
                     int64_t layer,
                     const TensorParallelLayout& layout);

/// Windows, scale, cap, biases by distance, sinks, dropout and precision of a layer's attention.
class CoreAttention {
 public:
  /// `layer` counts from 0.
  CoreAttention(const TransformerConfig& config, int64_t layer, const HeadShare& share);

  /// [heads of this rank], of which this makes use, and whose owner is somebody else.
  void set_sinks(const nn::Parameter& sinks) { sinks_ = &sinks; }
  std::optional<int64_t> window_left() const { return window_left_; }
  int64_t layer() const { return layer_; }  ///< from 0
  int64_t total_heads() const { return total_heads_; }

  /// From here on the largest score of each of this rank's heads in training passes is kept, or no
  /// more; what was kept is forgotten. In evaluation nothing is measured.
  void measure_logits(bool on);
  /// [heads of this rank], float32, -inf before the first pass: see AttentionOptions. A pass that
  /// is computed again for backward finds the same. Undefined while nothing is measured.
  Tensor max_logits() const { return max_logits_; }
  /// ", window=7, sinks"
  std::string described() const;

  /// q [B, heads, S, D], k [B, groups, S, D], v [B, groups, S, E] -> [B, heads, S, E].
  Tensor attend(const Tensor& q,
                const Tensor& k,
                const Tensor& v,
                const AttentionContext& context,
                bool training) const;
  /// The same of new tokens [1, heads, N, D] of texts whose earlier keys and values are in the
  /// step's cache; their own are added to it, unless the layer has another's. Dtype and window of
  /// `keys` are filled in here.
  Tensor attend_cached(const Tensor& q,
                       const Tensor& k,
                       const Tensor& v,
                       LayerKeys keys,
                       const CachedStep& step) const;

 private:
  Tensor sinks() const { return sinks_ != nullptr ? Tensor(*sinks_) : Tensor(); }

  int64_t layer_;
  int64_t keys_layer_;   // whose keys it reads
  int64_t total_heads_;  // of all ranks
  int64_t first_head_;   // of this rank
  int64_t num_heads_;
  bool mask_alone_;  // what the mask lets through is visible, also behind the query
  std::optional<int64_t> window_left_;
  double scale_;
  double score_cap_;
  std::vector<double> alibi_slopes_;  // of this rank's heads
  double score_divisor_;              // of the scores before their softmax, which makes up for it
  double dropout_;
  Precision precision_;
  ContextParallelLayout context_layout_;
  const nn::Parameter* sinks_ = nullptr;
  Tensor max_logits_;
};

}  // namespace tapestry

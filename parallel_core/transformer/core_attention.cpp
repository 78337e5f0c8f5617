#include "parallel_core/transformer/core_attention.h"

#include <limits>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/transformer/cached_attention.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/context_parallel/attention.h"
#include "parallel_core/random.h"

namespace tapestry {

HeadShare head_share(const TransformerConfig& config,
                     int64_t layer,
                     const TensorParallelLayout& layout) {
  const int64_t heads = config.num_attention_heads;
  const int64_t groups = num_query_groups(config, layer);
  check<ValueError>(groups > 0 && heads % groups == 0, "attention: ", heads,
                    " heads are not a multiple of ", groups, " query groups");
  HeadShare share;
  share.heads = layout.share_of(heads, "attention heads");
  share.first_head = layout.rank * share.heads;
  if (groups % layout.size == 0) {
    share.groups = groups / layout.size;
    share.first_group = layout.rank * share.groups;
    return share;
  }
  check<ValueError>(layout.size % groups == 0, "attention: ", groups, " query groups and ",
                    layout.size, " tensor-parallel ranks: neither divides the other");
  share.groups = 1;
  share.copies = layout.size / groups;
  share.first_group = layout.rank / share.copies;
  return share;
}

CoreAttention::CoreAttention(const TransformerConfig& config, int64_t layer, const HeadShare& share)
    : layer_(layer),
      keys_layer_(keys_from(config, layer).value_or(layer)),
      total_heads_(config.num_attention_heads),
      first_head_(share.first_head),
      num_heads_(share.heads),
      mask_alone_(config.encoder_attn_mask_type == "padding"),
      window_left_(tapestry::window_left(config, layer)),
      scale_(attention_scale(config, layer)),
      score_cap_(config.attention_softcap),
      score_divisor_(config.apply_query_key_layer_scaling ? static_cast<double>(layer + 1) : 1.0),
      dropout_(config.attention_dropout),
      precision_(precision_of(config)),
      context_layout_(context_parallel_layout()) {
  if (config.position_embedding_type == "alibi") {
    const std::vector<double> slopes = alibi_slopes(total_heads_);
    const auto first = slopes.begin() + first_head_;
    alibi_slopes_.assign(first, first + num_heads_);
  }
}

void CoreAttention::measure_logits(bool on) {
  max_logits_ =
      on ? full({num_heads_}, -std::numeric_limits<double>::infinity(), kFloat32) : Tensor();
}

std::string CoreAttention::described() const {
  return concat(window_left_ ? concat(", window=", *window_left_) : "",
                sinks_ != nullptr ? ", sinks" : "");
}

Tensor CoreAttention::attend(const Tensor& q,
                             const Tensor& k,
                             const Tensor& v,
                             const AttentionContext& context,
                             bool training) const {
  const Tensor& mask = context.mask;
  const Tensor& starts = context.document_starts;
  AttentionOptions options{.causal = !mask_alone_ || !mask.defined(),
                           .window_left = window_left_,
                           .scale = scale_,
                           .score_cap = score_cap_,
                           .mask = mask,
                           .document_starts = starts,
                           .alibi_slopes = alibi_slopes_,
                           .sinks = sinks(),
                           .max_logits = training ? max_logits_ : Tensor()};
  const bool fused = precision_.fused && precision_.softmax == kFloat32;
  const auto weigh = [&](const Tensor& a, const Tensor& b, const Tensor& c) {
    if (fused) {  // scores are float32 and never in memory
      return context_parallel_attention(a, b, c, options, context_layout_);
    }
    options.scale = scale_ * score_divisor_;
    const Tensor divided = score_divisor_ == 1 ? a : a / score_divisor_;
    return composed_context_parallel_attention(divided, b, c, options, context_layout_,
                                               precision_.softmax);
  };
  if (dropout_ == 0 || !training) {
    return weigh(q, k, v);
  }
  options.dropout_p = dropout_;
  options.dropout_source = dropout_key(layer_, DropoutSite::kAttentionProbs);
  const int64_t length = q.size(2) * context_layout_.size;
  TensorList parts;
  for (const SampleRun& run : sample_runs(q.size(0))) {
    const auto rows = [&](const Tensor& t) { return t.slice(0, run.begin, run.end); };
    options.mask = mask.defined() ? rows(mask) : mask;
    options.document_starts = starts.defined() ? rows(starts) : starts;
    options.dropout_place = {
        .shape = {run.first_sample + run.end - run.begin, total_heads_, length, length},
        .start = {run.first_sample, first_head_, 0, 0},
        .sample_axis = 0};
    parts.push_back(weigh(rows(q), rows(k), rows(v)));
  }
  return parts.size() == 1 ? parts[0] : cat(parts, 0);
}

Tensor CoreAttention::attend_cached(const Tensor& q,
                                    const Tensor& k,
                                    const Tensor& v,
                                    LayerKeys keys,
                                    const CachedStep& step) const {
  keys.dtype = k.dtype();
  keys.window_left = window_left_;
  const int64_t channels = keys.value_dim > 0 ? keys.value_dim : keys.head_dim;
  const LayerCache& cache = step.cache->layer(keys_layer_, keys);
  if (keys_layer_ == layer_) {
    cache.append(k, v, step.segments);
  }
  const int64_t tokens = q.size(2);
  Tensor out;  // [1, N, H, D]
  const auto put = [&](int64_t first, const Tensor& part) {
    const int64_t count = part.size(1);
    if (count == tokens) {
      out = part;
      return;
    }
    if (!out.defined()) {
      out = zeros({1, tokens, num_heads_, channels}, q.dtype());
    }
    copy_values(part, out.slice(1, first, first + count));
  };
  int64_t token = 0;
  for (size_t i = 0; i < step.segments.size();) {
    const CachedSegment& first = step.segments[i];
    size_t end = i + 1;
    while (first.count == 1 && end < step.segments.size() && step.segments[end].count == 1 &&
           step.segments[end].slot == step.segments[end - 1].slot + 1) {
      ++end;
    }
    const auto rows = static_cast<int64_t>(end - i);
    const int64_t count = rows * first.count;
    std::vector<int64_t> positions;
    for (size_t s = i; s < end; ++s) {
      positions.push_back(step.segments[s].position);
    }
    const auto slots = [&](const Tensor& t) { return t.slice(0, first.slot, first.slot + rows); };
    // Texts with one new token each lie side by side: their tokens are the rows of a batch.
    Tensor queries = q.slice(2, token, token + count);
    queries = rows > 1 ? queries.permute({2, 1, 0, 3}) : queries;
    const Tensor attended = cached_attention(queries, slots(cache.k), slots(cache.v), positions,
                                             {.window_left = window_left_,
                                              .scale = scale_,
                                              .score_cap = score_cap_,
                                              .alibi_slopes = alibi_slopes_,
                                              .sinks = sinks(),
                                              .ring = cache.ring});
    put(token, attended.permute({0, 2, 1, 3}).reshape({1, count, num_heads_, channels}));
    token += count;
    i = end;
  }
  return out.permute({0, 2, 1, 3});
}

}  // namespace tapestry

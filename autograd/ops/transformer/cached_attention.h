// Attention of new tokens over keys and values that are kept: what inference computes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "autograd/tensor/tensor.h"

namespace tapestry {

struct CachedAttentionOptions {
  /// How many of the T queries of each row there are, [B], each 0 to T: those behind them give 0
  /// and look at nothing. Empty: T in each row. For prompts of unequal length side by side.
  std::vector<int64_t> counts = {};
  /// A query at position p sees keys from position p - window_left on, so a window of L sees L + 1.
  std::optional<int64_t> window_left = std::nullopt;
  /// Factor of the scores; 1 / sqrt(D) by default.
  std::optional<double> scale = std::nullopt;
  /// Above 0: scaled scores s become score_cap tanh(s / score_cap). Source: Gemma 2,
  /// arXiv:2408.00118, section 2.
  double score_cap = 0;
  /// ALiBi, one for each of the H heads: slope (j - p) is added to the scaled scores. Empty:
  /// nothing.
  std::vector<double> alibi_slopes = {};
  /// [H], floating: a logit of each head that takes part in the softmax but multiplies no value, as
  /// AttentionOptions::sinks. Undefined: none.
  Tensor sinks = {};
  /// The key of position j lies in slot j modulo the capacity; else in slot j. Needs window_left,
  /// and a capacity of at least window_left + T: the oldest query's keys must still be there.
  bool ring = false;
};

/// out[b, h, i] = softmax over j of (cap(scale q k_j^T) + bias) times v_j, where the query i of row
/// b has position p = positions[b] + i and sees the keys j <= p, its own among them (causal).
///
/// q [B, H, T, D]; cache_k [B, G, capacity, D]; cache_v [B, G, capacity, E], G divides H and head h
/// uses group h / (H / G); keys and values of the new tokens are already in the caches. One
/// floating dtype (TypeError); any strides with a dense last axis (others are copied). out [B, H,
/// T, E] in that dtype lies in memory as [B, T, H, E], so that joining the heads is a view. Sums
/// and softmax are in float32 (float64 for float64). Slots that no query sees are not read.
///
/// A row's result does not depend on the other rows, nor on the number of threads. For few queries
/// (T times H / G up to 64) of float32 or bfloat16, keys of a group are read once for all its
/// heads, and sums run over blocks of keys that are counted from position 0, so that a token's bits
/// do not depend on how many are computed with it; longer rows of queries go the way of
/// scaled_dot_product_attention(). Inside a OneOrderScope (kernels/machine/one_order.h) they have
/// the bits of few queries, too, and so has scaled_dot_product_attention(). In exact mode
/// (kernels/machine/exact.h) all go that way, so that a token has the bits that training gives it.
///
/// There is no gradient: RuntimeError if grad mode is on and an input wants one. ValueError if
/// shapes, positions or counts do not fit (positions[b] + counts[b] exceeds the capacity, unless
/// ring), a negative position, window or score_cap, as many slopes or sinks as heads are not there,
/// or a scale of 0.
Tensor cached_attention(const Tensor& q,
                        const Tensor& cache_k,
                        const Tensor& cache_v,
                        const std::vector<int64_t>& positions,
                        const CachedAttentionOptions& options = {});

}  // namespace tapestry

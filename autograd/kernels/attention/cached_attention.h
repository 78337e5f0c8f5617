// Attention of a few new queries over keys and values that are kept: the forward pass alone, with
// the keys of a group read once for all its queries.
#pragma once

#include <cstdint>

#include "autograd/kernels/attention/attention.h"
#include "autograd/kernels/machine/cpu.h"

namespace tapestry::kernels {

/// q [batch, heads, q_len, head_dim]; k [batch, groups, capacity, head_dim]; v and out as these
/// with value_dim channels; all of dtype, float32 or bfloat16, dense along channels. Query i <
/// counts[b] of row b has the position p = positions[b] + i and sees the keys j with j <= p and
/// (window_left < 0 or j >= p - window_left); key j lies in slot j, or j modulo capacity if `ring`.
/// Its scaled score s becomes score_cap tanh(s / score_cap) if score_cap is above 0, and what is
/// added to that is slopes[head] (j - p), where there are slopes. sinks[head], where there are
/// sinks, is one more logit of the softmax, which multiplies no value. Queries from counts[b] on
/// give 0.
///
/// Sums run over blocks of kCachedKeys keys from position 0 on and then over the blocks in order,
/// in float32: the bits of a query's result depend on its own position, keys and values alone.
struct CachedAttention {
  DType dtype = kFloat32;
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t groups = 0;
  int64_t q_len = 0;
  int64_t head_dim = 0;
  int64_t value_dim = 0;
  int64_t capacity = 0;
  bool ring = false;
  int64_t window_left = -1;
  double scale = 1;
  double score_cap = 0;
  const double* slopes = nullptr;
  const double* sinks = nullptr;
  const int64_t* positions = nullptr;
  const int64_t* counts = nullptr;
  AttentionInput q;
  AttentionInput k;
  AttentionInput v;
  AttentionOutput out;
};
inline constexpr int64_t kCachedKeys = 256;

/// What one thread does at a time: a block of keys of a group meets all its queries.
struct CachedBlock {
  int64_t sample;
  int64_t group;
  int64_t first_key;
};

/// The largest exponent, the sum of the terms relative to it, then value_dim sums of values (padded
/// to a multiple of 16), of each query of the group: its heads, and of each all its queries.
constexpr int64_t cached_partial_floats(int64_t value_dim) {
  return 16 + (value_dim + 15) / 16 * 16;
}

TAPESTRY_DECLARE_PER_ISA(
    // Floats of working memory.
    int64_t cached_attention_scratch(const CachedAttention& call); void cached_attention_block(
        const CachedAttention& call, const CachedBlock& block, float* partials, float* scratch);
    // The result of query `i` of the group's head `head` from its partials, `stride` floats from
    // one block to the next.
    void cached_attention_merge(const CachedAttention& call,
                                int64_t sample,
                                int64_t head,
                                int64_t i,
                                int64_t blocks,
                                const float* partials,
                                int64_t stride))

void cached_attention(const CachedAttention& call);

}  // namespace tapestry::kernels

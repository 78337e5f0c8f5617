// Attention inside a OneOrderScope (machine/one_order.h): many queries by the kernel that computes
// a few over a cache, so that a query has the bits that cached_attention() gives it alone.
#pragma once

#include <cstdint>
#include <span>

#include "autograd/kernels/attention/attention.h"
#include "autograd/kernels/attention/cached_attention.h"

namespace tapestry::kernels {

/// Queries of a sample that follow one another and look at the keys of one text: query `first` + i
/// has the text's position `position` + i, and the text's first key lies in slot `first_key`.
struct CausalRun {
  int64_t sample = 0;
  int64_t first = 0;
  int64_t count = 0;
  int64_t position = 0;
  int64_t first_key = 0;
};

/// The queries of the runs as cached_attention() computes them, on the team; of `call`, q_len says
/// how many rows of queries there are, positions and counts are not looked at, and with `ring` each
/// first_key is 0. `lse` [batch, heads, q_len] float32 and `max_scores` [heads] as in attention.h,
/// null: nobody asks.
void attend_runs(const CachedAttention& call,
                 std::span<const CausalRun> runs,
                 float* lse,
                 float* max_scores);

/// Whether a call of attention() goes that way: inside a scope, but not in exact mode, float32 or
/// bfloat16, causal with all keys there, without mask and dropout.
bool wants_one_order(const AttentionForward& wanted);

/// attention() of such a call: documents are texts.
void attention_in_one_order(const AttentionForward& wanted);

}  // namespace tapestry::kernels

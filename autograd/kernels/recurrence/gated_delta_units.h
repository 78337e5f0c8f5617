// What one call of the loops of the gated delta rule does, and the memory that it needs.
#pragma once

#include <cstdint>

#include "autograd/kernels/recurrence/gated_delta.h"

namespace tapestry::kernels {

/// States [batch, value_heads, per_head, dk, dv] at some of the borders between chunks: border c
/// lies before chunk c, in place (c - first) modulo per_head.
struct DeltaBorders {
  void* data = nullptr;
  int64_t per_head = 0;
  int64_t first = 0;
};

/// Heads that share a key head, chunks, and columns of the states. All columns where something else
/// than states is wanted.
struct DeltaUnit {
  int64_t sample = 0;
  int64_t key_head = 0;
  int64_t head_begin = 0;
  int64_t head_end = 0;
  int64_t chunk_begin = 0;
  int64_t chunk_end = 0;
  int64_t column_begin = 0;
  int64_t column_end = 0;
  bool wants_tokens = false;  ///< forward: out; backward: dqkv, dg, dbeta
  bool wants_states = false;  ///< forward: the states after its chunks; backward: before them
};

inline constexpr int64_t kDeltaColumns = 16;  ///< what sizes are rounded up to in working memory

inline constexpr int64_t delta_padded(int64_t n) {
  return (n + kDeltaColumns - 1) / kDeltaColumns * kDeltaColumns;
}
/// Rows of working memory lie so far apart: an odd number of cache lines, so that the rows of a
/// panel do not compete for a few places of the cache.
inline constexpr int64_t delta_row(int64_t n) { return delta_padded(n) + kDeltaColumns; }

/// Elements of compute type that a unit of `heads` heads needs.
inline constexpr int64_t delta_scratch(const DeltaProblem& p, int64_t heads, bool is_backward) {
  constexpr int64_t kC = kDeltaChunk;
  const int64_t keys = delta_row(p.key_dim);
  const int64_t values = delta_row(p.value_dim);
  const int64_t square = kC * delta_row(kC);
  const int64_t state = delta_padded(p.key_dim) * values;
  const int64_t turned = delta_padded(p.value_dim) * keys;
  const int64_t rows_of_numbers = 32 * kC;
  const int64_t forward = 2 * kC * keys + delta_padded(p.key_dim) * delta_row(kC) + 7 * square +
                          3 * kC * values + heads * state + rows_of_numbers;
  return is_backward ? forward + 3 * kC * keys + 4 * kC * values + 3 * square + 2 * turned +
                           delta_padded(p.value_dim) * delta_row(kC) + heads * state
                     : forward;
}

}  // namespace tapestry::kernels

// Rotary position embedding (Su et al. 2021, arXiv:2104.09864).
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

/// Elements from one sample, head and position to the next; channels are contiguous.
struct RopeStrides {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
};

/// Turns pairs of channels of x [batch, heads, seq, head_dim]: with c = cos[s, m], s_ = sin[s, m],
/// 0 <= m < rotary_dim / 2,
///   y[a] = x[a] c - x[b] s_,  y[b] = x[b] c + x[a] s_,
/// where (a, b) = (2 m, 2 m + 1) if interleaved, else (m, m + rotary_dim / 2). Channels from
/// rotary_dim (even, at most head_dim) on are copied. inverse turns back (s_ negated), which is the
/// gradient. cos and sin [rows, rotary_dim / 2] contiguous, float32 (float64 where x is float64);
/// dtype is floating. y may be exactly x. Position s of sample b takes row s of the table, or with
/// `rows` row rows[b * rows_batch + s].
struct RopeCall {
  DType dtype = kFloat32;
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t seq = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;
  bool interleaved = false;
  bool inverse = false;
  const void* x = nullptr;
  RopeStrides x_strides;
  const void* cos = nullptr;
  const void* sin = nullptr;
  const int64_t* rows = nullptr;
  int64_t rows_batch = 0;
  void* y = nullptr;
  RopeStrides y_strides;
};
void rope(const RopeCall& call);

}  // namespace tapestry::kernels

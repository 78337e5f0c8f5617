// Rows of tokens copied to rows sorted by expert, and summed back.
//
// Token t has up to topk rows: rows[t * topk + j], or -1; no two choices have the same one. Inputs
// are [rows or tokens, n] with strides in elements from one row to the next, outputs are
// contiguous. One floating dtype; 16-bit ones are computed in float32 and rounded once. Gates are
// float32, or float64 with float64. Threads share the tokens; the bits do not depend on how.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

struct TokenRows {
  int64_t tokens = 0;
  int64_t topk = 0;
  const int32_t* rows = nullptr;
};

/// y[row] = x[t] for each row of t.
struct PermuteRows {
  DType dtype = kFloat32;
  TokenRows map;
  int64_t n = 0;
  const void* x = nullptr;
  int64_t x_stride = 0;
  void* y = nullptr;
};
void permute_rows(const PermuteRows& call);

/// y[t] = sum of gates[t, j] x[row] over the rows of t, in their order; without gates: of x[row].
struct UnpermuteRows {
  DType dtype = kFloat32;
  TokenRows map;
  int64_t n = 0;
  const void* x = nullptr;
  int64_t x_stride = 0;
  const void* gates = nullptr;  ///< [tokens, topk], or null
  void* y = nullptr;
};
void unpermute_rows(const UnpermuteRows& call);

/// dx[row] = gates[t, j] dy[t]; dgates[t, j] = dy[t] . x[row], 0 where there is no row.
struct UnpermuteRowsBackward {
  DType dtype = kFloat32;
  TokenRows map;
  int64_t n = 0;
  const void* x = nullptr;  ///< not looked at without dgates
  int64_t x_stride = 0;
  const void* gates = nullptr;
  const void* dy = nullptr;
  int64_t dy_stride = 0;
  void* dx = nullptr;      ///< or null: not wanted
  void* dgates = nullptr;  ///< [tokens, topk], or null: not wanted
};
void unpermute_rows_backward(const UnpermuteRowsBackward& call);

}  // namespace tapestry::kernels

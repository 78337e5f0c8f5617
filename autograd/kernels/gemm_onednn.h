// Matrix products by oneDNN; used by gemm.cpp only.
#pragma once

#include <cstdint>

#include "autograd/kernels/dtype.h"

namespace tapestry::kernels {

/// The arguments of gemm_batched without its pointers. What a compiled product depends on.
struct GemmShape {
  DType dtype;
  DType c_dtype;
  bool trans_a;
  bool trans_b;
  int64_t batch;
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t lda;
  int64_t stride_a;
  int64_t ldb;
  int64_t stride_b;
  int64_t ldc;
  int64_t stride_c;
  float alpha;
  float beta;
  int threads = 0;  // filled in by onednn_gemm

  bool operator==(const GemmShape&) const = default;
};

/// Whether oneDNN's products of that dtype are the best at the level in use: bfloat16 with AMX.
bool has_onednn_gemm(DType dtype);

/// bfloat16 or float32 operands. False, with c untouched, if oneDNN has no fast product of that
/// shape.
bool onednn_gemm(const GemmShape& shape, const void* a, const void* b, void* c);

}  // namespace tapestry::kernels

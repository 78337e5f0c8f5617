// A matrix product without its pointers.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

/// C[m,n] = alpha op(A)[m,k] op(B)[k,n] + beta C, where op transposes if its flag is set: with
/// trans_a, A is stored as [k,m]. Matrices are row-major; ld* are elements from one row to the
/// next. Of a batch, stride_* are elements from one matrix to the next; 0 shares A or B (never C).
struct GemmShape {
  DType dtype = kFloat32;    ///< of A and B
  DType c_dtype = kFloat32;  ///< dtype, or float32 where that is bfloat16 or float16
  bool trans_a = false;
  bool trans_b = false;
  int64_t batch = 1;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  double alpha = 1;
  int64_t lda = 0;
  int64_t stride_a = 0;
  int64_t ldb = 0;
  int64_t stride_b = 0;
  double beta = 0;
  int64_t ldc = 0;
  int64_t stride_c = 0;

  bool operator==(const GemmShape&) const = default;
};

/// A second piece of the sum of one product, which lies elsewhere: C = alpha (op(A) op(B) + D E) +
/// beta C with D [m,k] and E [k,n], or [n,k] if trans_e.
struct GemmTail {
  bool trans_e = false;
  int64_t k = 0;
  const void* d = nullptr;
  int64_t ldd = 0;
  const void* e = nullptr;
  int64_t lde = 0;
};

}  // namespace tapestry::kernels

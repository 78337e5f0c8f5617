// The arguments of a matrix product without its pointers; for the implementations behind gemm.h.
#pragma once

#include <cstdint>

#include "autograd/kernels/dtype.h"

namespace tapestry::kernels {

/// As the arguments of gemm_batched().
struct GemmShape {
  DType dtype;
  DType c_dtype;
  bool trans_a;
  bool trans_b;
  int64_t batch;
  int64_t m;
  int64_t n;
  int64_t k;
  double alpha;
  int64_t lda;
  int64_t stride_a;
  int64_t ldb;
  int64_t stride_b;
  double beta;
  int64_t ldc;
  int64_t stride_c;

  bool operator==(const GemmShape&) const = default;
};

}  // namespace tapestry::kernels

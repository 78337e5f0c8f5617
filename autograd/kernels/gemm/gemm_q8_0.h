// Products with a matrix W [out, in] of Q8_0 blocks (q8_0.h).
//
// x, dy and the results are float32, bfloat16 or float16, summed in float32. For few rows of x the
// blocks are multiplied as they lie: every number is exact, a block's sum times its scale is added
// to the sum of the row. Otherwise some rows or columns of W at a time are decoded to the dtype of
// x and multiplied by gemm(). Bits do not depend on the number of threads where gemm()'s do not.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

struct Q8Matrix {
  const void* blocks;
  int64_t out;
  int64_t in;  ///< a multiple of kQ8Block
};

/// y [n, out] = x [n, in] W^T + beta y; ld* are elements from one row to the next.
void gemm_q8_0(DType dtype,
               int64_t n,
               const Q8Matrix& w,
               const void* x,
               int64_t ldx,
               double beta,
               void* y,
               int64_t ldy);

/// dx [n, in] = dy [n, out] W.
void gemm_q8_0_backward(DType dtype,
                        int64_t n,
                        const Q8Matrix& w,
                        const void* dy,
                        int64_t ld_dy,
                        void* dx,
                        int64_t ld_dx);

}  // namespace tapestry::kernels

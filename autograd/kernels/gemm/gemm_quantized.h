// Products with a matrix W [out, in] of blocks (quantized_blocks.h), and with one for each group of
// rows.
//
// x, dy and the results are float32, bfloat16 or float16, summed in float32. For few rows of x the
// blocks are multiplied as they lie: every number is exact, a block's sum times its scale is added
// to the sum of the row. Otherwise some rows or columns of W at a time are decoded to the dtype of
// x and multiplied by gemm(). Bits do not depend on the number of threads where gemm()'s do not.
#pragma once

#include <cstdint>
#include <span>

#include "autograd/kernels/gemm/quantized_blocks.h"
#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

struct BlockMatrix {
  BlockFormat format;
  const void* blocks;
  int64_t out;
  int64_t in;  ///< a multiple of kBlockNumbers
};

/// y [n, out] = x [n, in] W^T + beta y; ld* are elements from one row to the next.
void gemm_quantized(DType dtype,
                    int64_t n,
                    const BlockMatrix& w,
                    const void* x,
                    int64_t ldx,
                    double beta,
                    void* y,
                    int64_t ldy);

/// dx [n, in] = dy [n, out] W.
void gemm_quantized_backward(DType dtype,
                             int64_t n,
                             const BlockMatrix& w,
                             const void* dy,
                             int64_t ld_dy,
                             void* dx,
                             int64_t ld_dx);

/// The same for groups of rows, of which group e ends where `ends`, ascending, says, and has the
/// matrix of rows [e out, (e + 1) out) of `w`; w.out is that of one matrix. The work of all groups
/// is shared by the team, however different their sizes.
void grouped_gemm_quantized(DType dtype,
                            std::span<const int64_t> ends,
                            const BlockMatrix& w,
                            const void* x,
                            int64_t ldx,
                            double beta,
                            void* y,
                            int64_t ldy);
void grouped_gemm_quantized_backward(DType dtype,
                                     std::span<const int64_t> ends,
                                     const BlockMatrix& w,
                                     const void* dy,
                                     int64_t ld_dy,
                                     void* dx,
                                     int64_t ld_dx);

}  // namespace tapestry::kernels

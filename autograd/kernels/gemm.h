// Matrix products, by whoever is fastest at them here: OpenBLAS (float64, and float32 below AVX2 or
// where it has kernels for the processor's AVX-512), oneDNN (bfloat16 with AMX), or our own
// (gemm_tiled.h: bfloat16 and float16 from AVX2 on, and float32 where OpenBLAS has kernels for AVX2
// only).
//
// Matrices are row-major with a leading dimension (elements from one row to the next). Called
// inside an OpenMP parallel region or by a thread with a team of one, a product runs on that thread
// alone. For the same shapes, CPU level and team size the same bits come out.
#pragma once

#include <cstdint>
#include <string_view>

#include "autograd/kernels/dtype.h"

namespace tapestry::kernels {

/// C[m,n] = alpha op(A)[m,k] op(B)[k,n] + beta C, where op transposes if its flag is set: with
/// trans_a, A is stored as [k,m]. A and B have `dtype`, C has `c_dtype`: equal to dtype, or float32
/// where dtype is bfloat16 or float16, whose sums are in float32 and rounded once. Integer products
/// wrap; alpha and beta are truncated to integers there. beta == 0 does not read C (NaN in it does
/// not survive); k == 0 gives beta C. C overlaps neither A nor B.
void gemm(DType dtype,
          DType c_dtype,
          bool trans_a,
          bool trans_b,
          int64_t m,
          int64_t n,
          int64_t k,
          double alpha,
          const void* a,
          int64_t lda,
          const void* b,
          int64_t ldb,
          double beta,
          void* c,
          int64_t ldc);

/// `batch` products. stride_* are elements from one matrix to the next; 0 shares A or B (never C).
/// Small ones, or blocks of their rows, are spread over the team; large ones take all of it each.
void gemm_batched(DType dtype,
                  DType c_dtype,
                  bool trans_a,
                  bool trans_b,
                  int64_t batch,
                  int64_t m,
                  int64_t n,
                  int64_t k,
                  double alpha,
                  const void* a,
                  int64_t lda,
                  int64_t stride_a,
                  const void* b,
                  int64_t ldb,
                  int64_t stride_b,
                  double beta,
                  void* c,
                  int64_t ldc,
                  int64_t stride_c);

/// How the loaded OpenBLAS was built and threads itself: "openmp: OpenBLAS 0.3.21 ...". The
/// pthread flavour ("pthread: ...") runs a second pool beside OpenMP and is slow here.
std::string_view blas_flavour();

/// Whether 16-bit products of that dtype run on the processor's own 16-bit units, rather
/// than by conversion to float32.
bool has_native_gemm(DType dtype);

}  // namespace tapestry::kernels

// Matrix products by OpenBLAS; used by gemm.cpp only.
#pragma once

#include "autograd/kernels/gemm/gemm_shape.h"

namespace tapestry::kernels {

/// Whether the level in use has AVX2 at least, and the loaded OpenBLAS no kernels for AVX-512. It
/// chooses them by the processor's model, and gives one that it does not know kernels for AVX2.
bool openblas_lacks_avx512();

/// One product, on the team, of float32 or float64 (the batch of the shape is not looked at); m, n,
/// k > 0.
void blas_gemm(const GemmShape& shape, const void* a, const void* b, void* c);

}  // namespace tapestry::kernels

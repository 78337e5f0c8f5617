// Matrix products, by whoever is fastest at them here: OpenBLAS (float64, and float32 below AVX2 or
// where it has kernels for the processor's AVX-512), oneDNN (bfloat16 with AMX), or our own
// (gemm_tiled.h: bfloat16 and float16 from AVX2 on, and float32 where OpenBLAS has kernels for AVX2
// only; gemm_few_rows.h: x W^T of a few rows of x, where reading W is most of the time).
//
// Called inside an OpenMP parallel region or by a thread with a team of one, a product runs on that
// thread alone. For the same shapes, CPU level and team size the same bits come out; a row of x W^T
// has the same bits whichever rows x has besides, as long as there are no more than
// most_few_rows(); inside a OneOrderScope (machine/one_order.h) however many there are.
//
// In exact mode (machine/exact.h) products of float32, bfloat16 and float16 are all our own, of any
// size: an element is one run of fused multiply-adds in the order of k, from zero, or from C where
// that is float32, alpha = 1 and beta = 1. Its bits follow from its row of A, its column of B and
// these, whatever m, n, the batch, the team and the level are (one with fused multiply-adds;
// bfloat16 in pairs is a class of its own).
#pragma once

#include <cstdint>
#include <string_view>

#include "autograd/kernels/gemm/gemm_shape.h"

namespace tapestry::kernels {

/// The product or, with shape.batch != 1, so many products. Sums of bfloat16 and float16 are in
/// float32 and rounded once. Integer products wrap; alpha and beta are truncated to integers there.
/// beta == 0 does not read C (NaN in it does not survive); k == 0 gives beta C. C overlaps neither
/// A nor B. Small matrices of a batch, or blocks of their rows, are spread over the team, large
/// ones are each computed by the whole team.
void gemm(const GemmShape& shape, const void* a, const void* b, void* c);

/// One product with a tail. Tiles of our own sum both pieces in one run and round it once; anything
/// else is two products, of which the second is added to the first in C.
void gemm_with_tail(
    const GemmShape& shape, const void* a, const void* b, void* c, const GemmTail& tail);

/// How the loaded OpenBLAS was built and threads itself: "openmp: OpenBLAS 0.3.21 ...". The
/// pthread flavour ("pthread: ...") runs a second pool beside OpenMP and is slow here.
std::string_view blas_flavour();

/// Whether 16-bit products of that dtype run on the processor's own 16-bit units, rather
/// than by conversion to float32.
bool has_native_gemm(DType dtype);

}  // namespace tapestry::kernels

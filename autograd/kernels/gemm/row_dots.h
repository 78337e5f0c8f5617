// Products of a few columns, in which every row is computed alike.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

/// y[r, c] = sum_k x[r, k] w[c, k]: x [rows, n], w [columns, n], y [rows, columns], contiguous,
/// float32 or float64 (asserted), summed in that type. Unlike gemm(), which takes rows at the edge
/// of a block another way, it gives an entry the same bits whichever rows x has besides, and for
/// any number of threads: equal rows of x have equal results.
void row_dots(
    DType dtype, int64_t rows, int64_t columns, int64_t n, const void* x, const void* w, void* y);

}  // namespace tapestry::kernels

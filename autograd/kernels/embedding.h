// Rows of a table by their numbers, and the sum of gradients back into the table.
//
// weight [vocab, dim] contiguous; every id is in [0, vocab) (checked by the caller).
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

/// y[i] = weight[ids[i]], y [rows, dim]. Any dtypes; converted as cast_row does where they differ.
void embedding(DType dtype,
               DType y_dtype,
               int64_t rows,
               int64_t dim,
               const void* weight,
               const int64_t* ids,
               void* y);

/// dweight[ids[i]] += dy[i], dy [n_ids, dim]. Floating dtypes, that of dweight either dy's or, for
/// 16-bit dy, float32; the terms of one row are added in float32 (float64) in the order of i and
/// rounded once, for any number of threads.
void embedding_backward(DType dtype,
                        DType dy_dtype,
                        int64_t n_ids,
                        int64_t vocab,
                        int64_t dim,
                        const int64_t* ids,
                        const void* dy,
                        void* dweight);

/// The same as exact sums (exact_sums.h): sums float64 [vocab, dim], to which each of the rows is
/// added as a term.
void embedding_exact_sums(
    DType dy_dtype, int64_t n_ids, int64_t dim, const int64_t* ids, const void* dy, double* sums);

// For embedding.cpp: columns [begin, end); `order` has equal ids together, in ascending places.
TAPESTRY_DECLARE_PER_ISA(void embedding_backward_columns(DType dtype,
                                                         DType dy_dtype,
                                                         int64_t begin,
                                                         int64_t end,
                                                         int64_t dim,
                                                         int64_t n_ids,
                                                         const int64_t* order,
                                                         const int64_t* ids,
                                                         const void* dy,
                                                         void* dweight))

}  // namespace tapestry::kernels

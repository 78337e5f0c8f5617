// Sorting and top-k of the rows of a contiguous [rows, n] array.
//
// NaN counts as larger than everything. Outputs may be null where they are not wanted.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

/// values[rows,n] sorted, indices[rows,n] where they came from; equal elements keep their order in
/// both directions. NaN comes last ascending, first descending. x and values may be the same.
void sort_rows(DType dtype,
               int64_t rows,
               int64_t n,
               const void* x,
               bool descending,
               void* values,
               int64_t* indices);

/// The k largest (or smallest) of each row, best first: values[rows,k], indices[rows,k]; among
/// equals the lower index first. 0 <= k <= n (asserted).
void topk_rows(DType dtype,
               int64_t rows,
               int64_t n,
               int64_t k,
               bool largest,
               const void* x,
               void* values,
               int64_t* indices);

}  // namespace tapestry::kernels

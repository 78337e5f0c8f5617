// Tensors as the matrices that products take.
#pragma once

#include <cstddef>
#include <cstdint>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// A matrix in memory, or a batch of them with the strides of its batch axes.
struct BlasMatrix {
  const std::byte* data;
  bool transposed;
  int64_t rows, columns;
  int64_t leading;  ///< elements from one row (of the stored, maybe transposed matrix) to the next
  Strides batch;
};

/// x, or an unrecorded copy, in a layout that BLAS takes: one of the last two axes has unit stride,
/// the other steps over at least a row.
Tensor blas_layout(const Tensor& x);

/// x (in a layout for BLAS) with its batch axes repeated up to `batch_shape`. Touches x's memory,
/// also where x is empty.
BlasMatrix as_blas_matrix(const Tensor& x, const Shape& batch_shape);

}  // namespace tapestry

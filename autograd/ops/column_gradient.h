// Gradients of parameters that all rows share, as kernels write them.
#pragma once

#include "autograd/kernels/column_sums.h"
#include "autograd/tensor/tensor.h"

namespace tapestry {

/// What backward returns as the gradient of `parameter` [n], and, in `out`, where the kernel has to
/// put it: its main_grad, to be added to, or else a new tensor of that dtype. Undefined if it is
/// not needed.
Tensor column_gradient(
    const Tensor& parameter, DType dtype, int64_t n, bool needed, kernels::ColumnSums& out);

/// Where `parameter` takes exact sums (exact_main_grad), adds the rows of dy [.., n], n elements of
/// the parameter, of which each row is a term, and returns its gradient. Else undefined, and
/// nothing done.
Tensor exact_row_sums(const Tensor& parameter, const Tensor& dy);

}  // namespace tapestry

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

}  // namespace tapestry

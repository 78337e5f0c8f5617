// From tensors to the element-wise kernels: broadcasting, strides and dtypes, nothing recorded. Ops
// call these in their forward.
#pragma once

#include <string_view>

#include "autograd/kernels/elementwise/elementwise.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/tensor.h"

namespace tapestry {

/// TypeError, naming op, where a kernel has no row for the dtype.
template <class Row>
void check_row(Row row, std::string_view op, DType dtype) {
  check<TypeError>(row != nullptr, op, ": not defined for ", name_of(dtype));
}

/// bool 0, integer 1, floating 2: a result of a higher category does not fit into a lower one.
inline int category(DType dtype) { return dtype == kBool ? 0 : is_floating(dtype) ? 2 : 1; }

/// Each returns a new contiguous tensor. TypeError, naming op, if the kernel does not know the
/// dtype; ValueError if shapes do not broadcast.
Tensor map_unary(std::string_view op, kernels::UnaryOp kernel, const Tensor& x);
/// Both operands must have one dtype already.
Tensor map_binary(std::string_view op, kernels::BinaryOp kernel, const Tensor& a, const Tensor& b);
Tensor map_scalar(std::string_view op, kernels::ScalarOp kernel, const Tensor& x, double s);
/// condition ? a : b; condition is bool, a and b have one dtype.
Tensor map_where(std::string_view op, const Tensor& condition, const Tensor& a, const Tensor& b);

/// Converts the elements into an existing tensor of the same shape, any strides.
void copy_values(const Tensor& source, const Tensor& destination);
/// A contiguous copy.
Tensor dense_copy(const Tensor& x);
/// x itself if it is contiguous, else a copy.
Tensor dense(const Tensor& x);

/// The dtype in which two tensors meet. As in PyTorch, a scalar (no axes) yields to a tensor with
/// axes unless it is of a higher category (bool < integer < floating).
DType result_dtype(const Tensor& a, const Tensor& b);

/// x with the strides that make it look like `shape` (0 on repeated axes), sharing storage. The
/// shapes must broadcast.
Tensor broadcast_view(const Tensor& x, const Shape& shape);

}  // namespace tapestry

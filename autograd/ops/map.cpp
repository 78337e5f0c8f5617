#include "autograd/ops/map.h"

#include "autograd/tensor/factory.h"
#include "autograd/tensor/strided_view.h"

namespace tapestry {

namespace {

using kernels::BinaryOp;
using kernels::ScalarOp;
using kernels::UnaryOp;

}  // namespace

Tensor map_unary(std::string_view op, UnaryOp kernel, const Tensor& x) {
  const kernels::UnaryRow row = kernels::unary_row(kernel, x.dtype());
  check_row(row, op, x.dtype());
  Tensor y = empty(x.shape(), gives_bool(kernel) ? kBool : x.dtype());
  if (x.is_contiguous()) {
    kernels::apply_unary_contiguous(row, x.numel(), x.raw(), size_of(x.dtype()), y.raw(),
                                    size_of(y.dtype()));
    return y;
  }
  kernels::apply_unary(row, extent_of(x), view_of(x), view_of(y));
  return y;
}

Tensor map_binary(std::string_view op, BinaryOp kernel, const Tensor& a, const Tensor& b) {
  check<TypeError>(a.dtype() == b.dtype(), op, ": dtypes differ: ", name_of(a.dtype()), " and ",
                   name_of(b.dtype()));
  const kernels::BinaryRow row = kernels::binary_row(kernel, a.dtype());
  check_row(row, op, a.dtype());
  const DType out_dtype = gives_bool(kernel) ? kBool : a.dtype();
  if (a.shape() == b.shape()) {
    Tensor y = empty(a.shape(), out_dtype);
    if (a.is_contiguous() && b.is_contiguous()) {
      kernels::apply_binary_contiguous(row, y.numel(), a.raw(), b.raw(), size_of(a.dtype()),
                                       y.raw(), size_of(out_dtype));
      return y;
    }
    kernels::apply_binary(row, extent_of(y), view_of(a), view_of(b), view_of(y));
    return y;
  }
  const Shape shape = broadcast_shapes(op, a.shape(), b.shape());
  const Tensor wide_a = broadcast_view(a, shape);
  const Tensor wide_b = broadcast_view(b, shape);
  Tensor y = empty(shape, out_dtype);
  kernels::apply_binary(row, extent_of(y), view_of(wide_a), view_of(wide_b), view_of(y));
  return y;
}

Tensor map_scalar(std::string_view op, ScalarOp kernel, const Tensor& x, double s) {
  const kernels::ScalarRow row = kernels::scalar_row(kernel, x.dtype());
  check_row(row, op, x.dtype());
  Tensor y = empty(x.shape(), gives_bool(kernel) ? kBool : x.dtype());
  kernels::apply_scalar(row, extent_of(x), view_of(x), s, view_of(y));
  return y;
}

Tensor map_where(std::string_view op, const Tensor& condition, const Tensor& a, const Tensor& b) {
  check<TypeError>(condition.dtype() == kBool, op, ": the condition must be bool, got ",
                   name_of(condition.dtype()));
  check<TypeError>(a.dtype() == b.dtype(), op, ": dtypes differ: ", name_of(a.dtype()), " and ",
                   name_of(b.dtype()));
  const Shape shape =
      broadcast_shapes(op, condition.shape(), broadcast_shapes(op, a.shape(), b.shape()));
  const Tensor wide_condition = broadcast_view(condition, shape);
  const Tensor wide_a = broadcast_view(a, shape);
  const Tensor wide_b = broadcast_view(b, shape);
  Tensor y = empty(shape, a.dtype());
  kernels::apply_ternary(kernels::where_row(a.dtype()), extent_of(y), view_of(wide_condition),
                         view_of(wide_a), view_of(wide_b), view_of(y));
  return y;
}

void copy_values(const Tensor& source, const Tensor& destination) {
  if (source.dtype() == destination.dtype()) {
    kernels::copy_strided(source.dtype(), extent_of(source), view_of(source), view_of(destination));
    return;
  }
  kernels::apply_unary(kernels::cast_row(source.dtype(), destination.dtype()), extent_of(source),
                       view_of(source), view_of(destination));
}

Tensor dense_copy(const Tensor& x) {
  Tensor y = empty_like(x);
  copy_values(x, y);
  return y;
}

Tensor dense(const Tensor& x) { return x.is_contiguous() ? x : dense_copy(x); }

DType result_dtype(const Tensor& a, const Tensor& b) {
  if ((a.dim() == 0) == (b.dim() == 0)) {
    return promote(a.dtype(), b.dtype());
  }
  const DType with_axes = a.dim() > 0 ? a.dtype() : b.dtype();
  const DType scalar = a.dim() > 0 ? b.dtype() : a.dtype();
  return category(scalar) > category(with_axes) ? promote(with_axes, scalar) : with_axes;
}

Tensor broadcast_view(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) {
    return x;
  }
  const int64_t missing = shape.size() - x.dim();
  Strides strides = Shape::filled(shape.size(), 0);
  for (int64_t i = 0; i < x.dim(); ++i) {
    strides[missing + i] = x.shape()[i] == 1 ? 0 : x.strides()[i];
  }
  return alias(x, shape, strides, x.offset());
}

}  // namespace tapestry

#include "diagnosis/dump/dense.h"

#include "autograd/kernels/elementwise/elementwise.h"
#include "autograd/kernels/elementwise/strided.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/strided_view.h"

namespace tapestry::dump {

Tensor dense(const Tensor& x) { return x.is_contiguous() ? x : dense_copy(x, x.dtype()); }

Tensor dense_copy(const Tensor& x, DType wider) {
  Tensor out = empty(x.shape(), wider);
  if (wider == x.dtype()) {
    kernels::copy_strided(wider, extent_of(x), view_of(x), view_of(out));
  } else {
    kernels::apply_unary(kernels::cast_row(x.dtype(), wider), extent_of(x), view_of(x),
                         view_of(out));
  }
  return out;
}

Tensor wide(const Tensor& x) {
  const bool exact_in_float32 = x.dtype() != kFloat64 && x.dtype() != kInt64 && x.dtype() != kInt32;
  const DType dtype = exact_in_float32 ? kFloat32 : kFloat64;
  return x.dtype() == dtype && x.is_contiguous() ? x : dense_copy(x, dtype);
}

}  // namespace tapestry::dump

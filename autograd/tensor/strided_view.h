// Tensors as the strided loops of kernels take them.
#pragma once

#include "autograd/kernels/elementwise/strided.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/tensor.h"

namespace tapestry {

/// The sizes of x, and its elements: both point into x, which must outlive them.
inline kernels::Extent extent_of(const Tensor& x) {
  return {static_cast<int>(x.dim()), x.shape().begin()};
}
inline kernels::View view_of(const Tensor& x) {
  return {x.raw(), x.strides().begin(), size_of(x.dtype())};
}

}  // namespace tapestry

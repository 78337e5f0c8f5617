// The layout that reduction kernels take.
#pragma once

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// A contiguous tensor seen as [outer, n, inner], where n runs over the reduced elements.
struct AxisView {
  Tensor tensor;
  int64_t outer = 1;
  int64_t n = 1;
  int64_t inner = 1;
};

/// Views (or, where the layout demands it, copies) x so that the normalized axes lie together. No
/// axes: n is 1. Not recorded.
AxisView bring_together(const Tensor& x, const Shape& axes);

/// A dense version of x seen as [outer, size of the axis, inner]. A scalar is one element. Not
/// recorded.
AxisView around_axis(const Tensor& x, int64_t axis);

/// Zeros of `shape` with src added at the places that index names along the normalized axis; index
/// and src have one shape. The gradient of gather() and of every choice of elements.
Tensor gather_backward(const Tensor& src, const Tensor& index, const Shape& shape, int64_t axis);

}  // namespace tapestry

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

}  // namespace tapestry

#include "autograd/ops/rows.h"

#include <algorithm>

#include "autograd/kernels/reduce.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/reduce_impl.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

Tensor finite_max(const Tensor& x, const Shape& axes) {
  const NoGradGuard guard;
  const Shape shape = reduced_shape(x.shape(), axes, true);
  if (x.numel() == 0) {
    return zeros(shape, x.dtype());
  }
  const AxisView view = bring_together(x, axes);
  Tensor y = empty(shape, x.dtype());
  kernels::reduce(kernels::ReduceOp::kMax, x.dtype(), view.outer, view.n, view.inner,
                  view.tensor.raw(), y.raw());
  return masked_fill(y, logical_not(isfinite(y)), 0);
}

Tensor pick_columns(const Tensor& x, const Tensor& labels) {
  const Tensor columns = arange(x.size(-1), labels.dtype());
  const Tensor chosen = eq(unsqueeze(labels, -1), columns);
  return sum(where(chosen, x, scalar(0, x.dtype())), {-1});
}

RowView rows_of(const Tensor& x) {
  const int64_t last = x.dim() - 1;
  RowView view{x, 1, x.shape()[last], 0};
  for (int64_t i = 0; i < last; ++i) {
    view.rows *= x.shape()[i];
  }
  bool regular = view.n <= 1 || x.strides()[last] == 1;
  int64_t expected = -1;  // stride that the next axis to the left must have; -1: any
  for (int64_t i = last - 1; i >= 0; --i) {
    if (x.shape()[i] != 1) {
      regular = regular && (expected < 0 || x.strides()[i] == expected);
      view.stride = expected < 0 ? x.strides()[i] : view.stride;
      expected = x.strides()[i] * x.shape()[i];
    }
  }
  if (!regular) {
    view.tensor = dense(x);
    view.stride = view.n;
  }
  return view;
}

Tensor empty_in_order_of(const Tensor& x) {
  Shape order;
  for (int64_t i = 0; i < x.dim() - 1; ++i) {
    order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return x.strides()[a] > x.strides()[b]; });
  Tensor out = empty(x.shape(), x.dtype());
  Strides strides = Shape::filled(x.dim(), 1);
  int64_t stride = x.shape().back();
  for (int64_t i = order.size() - 1; i >= 0; --i) {
    strides[order[i]] = stride;
    stride *= x.shape()[order[i]];
  }
  return alias(out, x.shape(), strides, 0);
}

std::ostream& operator<<(std::ostream& out, const PositionIn& position) {
  Shape indices = position.shape_;
  int64_t left = position.position_;
  for (int64_t axis = indices.size() - 1; axis >= 0; --axis) {
    const int64_t size = indices[axis];
    indices[axis] = left % size;
    left /= size;
  }
  return out << indices;
}

}  // namespace tapestry

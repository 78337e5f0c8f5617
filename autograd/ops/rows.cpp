#include "autograd/ops/rows.h"

#include "autograd/kernels/reduce.h"
#include "autograd/ops/elementwise.h"
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

std::string position_in(const Shape& shape, int64_t position) {
  Shape indices = shape;
  for (int64_t axis = shape.size() - 1; axis >= 0; --axis) {
    indices[axis] = position % shape[axis];
    position /= shape[axis];
  }
  return indices.str();
}

}  // namespace tapestry

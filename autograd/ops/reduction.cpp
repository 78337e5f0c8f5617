#include "autograd/ops/reduction.h"

#include <algorithm>

#include "autograd/kernels/reduce.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/reduce_impl.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

struct Sum {
  static constexpr std::string_view name = "sum";
  Shape axes;  // normalized
  bool keepdim;
  Shape x_shape;
  Tensor forward(const Tensor& x) {
    x_shape = x.shape();
    const AxisView view = bring_together(x, axes);
    Tensor y = empty(reduced_shape(x.shape(), axes, keepdim), x.dtype());
    kernels::reduce(kernels::ReduceOp::kSum, x.dtype(), view.outer, view.n, view.inner,
                    view.tensor.raw(), y.raw());
    return y;
  }
  Tensor backward(const Tensor& dy) const {
    return dy.reshape(reduced_shape(x_shape, axes, true)).expand(x_shape);
  }
};

}  // namespace

AxisView bring_together(const Tensor& x, const Shape& axes) {
  // Adjacent reduced axes of a contiguous tensor need no copy: [outer, n, inner].
  const bool adjacent = axes.empty() || axes.back() - axes[0] + 1 == axes.size();
  AxisView out;
  Shape order;
  for (int64_t i = 0; i < x.dim(); ++i) {
    if (std::find(axes.begin(), axes.end(), i) == axes.end()) {
      order.push_back(i);
    }
  }
  if (adjacent && x.is_contiguous()) {
    out.tensor = x;
    for (int64_t i = 0; i < x.dim(); ++i) {
      (axes.empty() || i < axes[0] ? out.outer
       : i > axes.back()           ? out.inner
                                   : out.n) *= x.shape()[i];
    }
    return out;
  }
  for (const int64_t i : order) {
    out.outer *= x.shape()[i];
  }
  Shape shape;
  Strides strides;
  for (const int64_t i : axes) {
    out.n *= x.shape()[i];
    order.push_back(i);
  }
  for (const int64_t i : order) {
    shape.push_back(x.shape()[i]);
    strides.push_back(x.strides()[i]);
  }
  out.tensor = dense(alias(x, shape, strides, x.offset()));
  return out;
}

Tensor sum(const Tensor& x, const Shape& axes, bool keepdim) {
  const Tensor wide = is_floating(x.dtype()) ? x : x.to(kInt64);
  return apply_op(Sum{normalize_axes("sum", axes, x.dim()), keepdim, {}}, wide);
}

Tensor mean(const Tensor& x, const Shape& axes, bool keepdim) {
  check_floating("mean", x.dtype());
  int64_t count = 1;
  for (const int64_t axis : normalize_axes("mean", axes, x.dim())) {
    count *= x.shape()[axis];
  }
  return div(sum(x, axes, keepdim), static_cast<double>(count));
}

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) {
    return x;
  }
  const int64_t missing = x.dim() - shape.size();
  Shape axes;
  for (int64_t i = 0; i < x.dim(); ++i) {
    if (i < missing || (shape[i - missing] == 1 && x.shape()[i] != 1)) {
      axes.push_back(i);
    }
  }
  if (axes.empty()) {
    return x.reshape(shape);
  }
  return sum(x, axes, true).reshape(shape);
}

}  // namespace tapestry

#include "autograd/ops/softmax.h"

#include <limits>

#include "autograd/kernels/softmax.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/reduce_impl.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/rows.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

using Kernel = void (*)(DType, int64_t, int64_t, int64_t, const void*, void*);
using BackwardKernel = void (*)(DType, int64_t, int64_t, int64_t, const void*, const void*, void*);

// A contiguous tensor and one of its axes as the kernels see them.
AxisView along(const Tensor& x, int64_t axis) {
  return bring_together(dense(x), x.dim() == 0 ? Shape{} : Shape{axis});
}

Tensor run(Kernel kernel, const Tensor& x, int64_t axis) {
  const AxisView view = along(x, axis);
  Tensor y = empty_like(x);
  kernel(x.dtype(), view.outer, view.n, view.inner, view.tensor.raw(), y.raw());
  return y;
}

Tensor run(BackwardKernel kernel, const Tensor& y, const Tensor& dy, int64_t axis) {
  const AxisView view = along(y, axis);
  const Tensor dense_dy = dense(dy);
  Tensor dx = empty_like(y);
  kernel(y.dtype(), view.outer, view.n, view.inner, view.tensor.raw(), dense_dy.raw(), dx.raw());
  return dx;
}

// Both derivatives are short in terms of the output, which second order goes through, too.
struct Softmax {
  static constexpr OpName name = "softmax";
  int64_t axis;  // normalized
  SavedTensor y;
  Tensor forward(const Tensor& x) { return y.save_output(run(kernels::softmax, x, axis)); }
  Tensor backward(const Tensor& dy) const {
    const Tensor p = y;
    if (grad_enabled()) {
      return mul(p, sub(dy, sum(mul(p, dy), {axis}, true)));
    }
    return run(kernels::softmax_backward, p, dy, axis);
  }
};

struct LogSoftmax {
  static constexpr OpName name = "log_softmax";
  int64_t axis;  // normalized
  SavedTensor y;
  Tensor forward(const Tensor& x) { return y.save_output(run(kernels::log_softmax, x, axis)); }
  Tensor backward(const Tensor& dy) const {
    const Tensor log_p = y;
    if (grad_enabled()) {
      return sub(dy, mul(exp(log_p), sum(dy, {axis}, true)));
    }
    return run(kernels::log_softmax_backward, log_p, dy, axis);
  }
};

struct LogSumExp {
  static constexpr OpName name = "logsumexp";
  Shape axes;  // normalized
  bool keepdim;
  SavedTensor x, y;
  Tensor forward(const Tensor& x_) {
    x.save(x_);
    const AxisView view = bring_together(x_, axes);
    Tensor out = empty(reduced_shape(x_.shape(), axes, keepdim), x_.dtype());
    kernels::logsumexp(x_.dtype(), view.outer, view.n, view.inner, view.tensor.raw(), out.raw());
    return y.save_output(out);
  }
  Tensor backward(const Tensor& dy) const {
    const Tensor values = x;
    const Shape kept = reduced_shape(values.shape(), axes, true);
    // Where the sum is 0, its logarithm would make exp(-inf - -inf) out of a probability of 0.
    const Tensor sums = y;
    const Tensor finite = masked_fill(sums, eq(sums, -std::numeric_limits<double>::infinity()), 0);
    return mul(dy.reshape(kept), exp(sub(values, finite.reshape(kept))));
  }
};

}  // namespace

Tensor softmax(const Tensor& x, int64_t axis) {
  check_defined("softmax", x, "x");
  check_floating("softmax", x.dtype());
  return apply_op(Softmax{normalize_axis("softmax", axis, x.dim()), {}}, x);
}

Tensor log_softmax(const Tensor& x, int64_t axis) {
  check_defined("log_softmax", x, "x");
  check_floating("log_softmax", x.dtype());
  return apply_op(LogSoftmax{normalize_axis("log_softmax", axis, x.dim()), {}}, x);
}

Tensor logsumexp(const Tensor& x, const Shape& axes, bool keepdim) {
  check_defined("logsumexp", x, "x");
  check_floating("logsumexp", x.dtype());
  // Widened before, so that backward has the sum unrounded.
  const LogSumExp op{normalize_axes("logsumexp", axes, x.dim()), keepdim, {}, {}};
  const Tensor wide = widen(x);
  const Tensor y = apply_op(op, wide).to(x.dtype());
  if (!wide.is_same(x)) {
    watch_versions(y, {x, y});
  }
  return y;
}

Tensor composed_softmax(const Tensor& x, int64_t axis) {
  const Shape axes = normalize_axes("softmax", Shape{axis}, x.dim());
  const Tensor values = widen(x);
  const Tensor e = exp(sub(values, finite_max(values, axes)));
  return div(e, sum(e, axes, true)).to(x.dtype());
}

Tensor composed_log_softmax(const Tensor& x, int64_t axis) {
  const Tensor values = widen(x);
  return sub(values, composed_logsumexp(values, {axis}, true)).to(x.dtype());
}

Tensor composed_logsumexp(const Tensor& x, const Shape& axes, bool keepdim) {
  const Shape normalized = normalize_axes("logsumexp", axes, x.dim());
  const Tensor values = widen(x);
  const Tensor largest = finite_max(values, normalized);
  const Tensor sums = sum(exp(sub(values, largest)), normalized, true);
  const Tensor y = add(log(sums), largest);
  return y.reshape(reduced_shape(x.shape(), normalized, keepdim)).to(x.dtype());
}

}  // namespace tapestry

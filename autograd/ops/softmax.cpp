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
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

struct LogSumExp {
  static constexpr std::string_view name = "logsumexp";
  Shape axes;  // normalized
  bool keepdim;
  SavedTensor x, y;
  Tensor forward(const Tensor& x_) {
    x.save(x_);
    return y.save_output(composed_logsumexp(x_, axes, keepdim));
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

Tensor logsumexp(const Tensor& x, const Shape& axes, bool keepdim) {
  check_floating("logsumexp", x.dtype());
  // Widened before, so that backward has the sum unrounded.
  const LogSumExp op{normalize_axes("logsumexp", axes, x.dim()), keepdim, {}, {}};
  return apply_op(op, widen(x)).to(x.dtype());
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

#include "autograd/tape/gradient_sum.h"

#include "autograd/tape/check_gradient.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/strided_view.h"

namespace tapestry {

namespace detail {

Tensor sum_into(const Tensor& a, const Tensor& b, const Tensor& out) {
  const kernels::BinaryRow row = kernels::binary_row(kernels::BinaryOp::kAdd, out.dtype());
  if (a.is_contiguous() && b.is_contiguous() && out.is_contiguous()) {
    const int64_t item = size_of(out.dtype());
    kernels::apply_binary_contiguous(row, out.numel(), a.raw(), b.raw(), item, out.raw(), item);
    return out;
  }
  kernels::apply_binary(row, extent_of(out), view_of(a), view_of(b), view_of(out));
  return out;
}

Tensor contiguous_copy(const Tensor& source) {
  Tensor out = empty_like(source);
  kernels::copy_strided(source.dtype(), extent_of(source), view_of(source), view_of(out));
  return out;
}

// out = x in another floating dtype.
void convert_into(const Tensor& x, const Tensor& out) {
  kernels::apply_unary(kernels::cast_row(x.dtype(), out.dtype()), extent_of(out), view_of(x),
                       view_of(out));
}

}  // namespace detail

namespace {

// The sum of two gradients, recorded in create_graph mode.
struct AccumulateGradients {
  static constexpr OpName name = "accumulate_gradients";
  Tensor forward(const Tensor& a, const Tensor& b) {
    check_gradient(b, a, name, ": b");
    return detail::sum_into(a, b, empty(a.shape(), a.dtype()));
  }
  std::array<Tensor, 2> backward(const Tensor& dy, NeedsGrad /*needs*/) const { return {dy, dy}; }
};

// A gradient of its own for a leaf, recorded in create_graph mode.
struct CopyGradient {
  static constexpr OpName name = "copy_gradient";
  Tensor forward(const Tensor& gradient) { return detail::contiguous_copy(gradient); }
  Tensor backward(const Tensor& dy) const { return dy; }
};

}  // namespace

Tensor accumulate(const Tensor& a, const Tensor& b) {
  check_defined("accumulate_gradients", a, "a", b, "b");
  return apply_op(AccumulateGradients{}, a, b);
}

Tensor owned_gradient(Tensor gradient) {
  check_defined("copy_gradient", gradient, "gradient");
  return detail::is_sole_owner(gradient) ? std::move(gradient) : apply_op(CopyGradient{}, gradient);
}

}  // namespace tapestry

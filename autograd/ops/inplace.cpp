#include "autograd/ops/inplace.h"

#include <cmath>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/strided_view.h"

namespace tapestry {

namespace {

using kernels::BinaryOp;
using kernels::ScalarOp;
using kernels::UnaryOp;

void check_fits(std::string_view op, const Tensor& x, const Shape& shape, DType dtype) {
  check<ValueError>(shape == x.shape(), op, ": the result would have shape ", shape, ", x has ",
                    x.shape(), " and cannot change it in place");
  check<TypeError>(category(dtype) <= category(x.dtype()), op, ": a ", name_of(dtype),
                   " result does not fit into x, which is ", name_of(x.dtype()),
                   "; convert x with to() first");
}

void check_writable(std::string_view op, const Tensor& x) {
  for (int64_t i = 0; i < x.dim(); ++i) {
    check<RuntimeError>(x.shape()[i] <= 1 || x.strides()[i] != 0, op,
                        ": elements of the expanded tensor ", x.shape(), " with strides ",
                        x.strides(), " share memory; change a clone() instead");
  }
}

// Whether the change belongs on the tape; throws where it must but cannot.
bool must_record(std::string_view op, const Tensor& x, bool operand_wants_grad) {
  check_writable(op, x);
  if (!grad_enabled()) {
    return false;
  }
  check<RuntimeError>(!x.impl()->outside_graph, op, ": ", describe(x),
                      " is a view of a tensor that is part of a graph, made where nothing was "
                      "recorded: the graph would not learn of the change; make the view while "
                      "recording, change it under a NoGradGuard, or make a view of detach()");
  check<RuntimeError>(!x.requires_grad() || !x.is_leaf(), op, ": ", describe(x),
                      " is a leaf that requires a gradient and cannot be changed in place while "
                      "recording; use a NoGradGuard or the op that makes a new tensor");
  if (!x.requires_grad() && !operand_wants_grad) {
    return false;
  }
  check<TypeError>(is_floating(x.dtype()), op, ": ", describe(x),
                   " cannot hold values that have a gradient");
  check<RuntimeError>(
      !x.impl()->one_of_several, op, ": ", describe(x),
      " is one of several views that one op made (split, chunk), or a view of such, "
      "and cannot be changed in place while recording; change a clone() instead");
  check<RuntimeError>(x.storage()->use_count() == 1, op, ": ", describe(x),
                      " shares its memory with another tensor (a view, an alias, or a value kept "
                      "for backward) and is part of a graph, so it cannot be changed in place; use "
                      "the op that makes a new tensor");
  return true;
}

// x as an input of the op that replaces it: its values in memory of their own, its place in the
// graph.
Tensor old_value(const Tensor& x) {
  Tensor old = dense_copy(x);
  if (x.requires_grad()) {
    const AutogradMeta& meta = *autograd_meta(x);
    set_gradient_edge(old, meta.grad_fn, meta.output);
  }
  return old;
}

// Makes x the recorded `result`.
Tensor become(const Tensor& x, const Tensor& result) {
  const Tensor converted = result.to(x.dtype());
  copy_values(converted, x);
  x.bump_version();
  const AutogradMeta& meta = *autograd_meta(converted);
  set_gradient_edge(x, meta.grad_fn, meta.output);
  return x;
}

// The same for an op whose derivative goes by its result, which from now on is x.
Tensor become_and_watch(const Tensor& x, const Tensor& result) {
  become(x, result);
  watch_versions(x, {x});
  return x;
}

// As PyTorch refuses it: the operand that the op has saved is changed by the op itself.
void watch_own_operand(const Tensor& x,
                       const Tensor& result,
                       const Tensor& other,
                       BinaryOp kernel) {
  if (other.is_same(x) && (kernel == BinaryOp::kMul || kernel == BinaryOp::kDiv)) {
    watch_versions(result, {x});
  }
}

Tensor changed(const Tensor& x) {
  x.bump_version();
  return x;
}

// A kernel reads operands while it writes x: they are either exactly x or somewhere else.
Tensor apart_from(const Tensor& x, const Tensor& operand) {
  const bool same_place = operand.offset() == x.offset() && operand.strides() == x.strides() &&
                          operand.shape() == x.shape();
  return operand.storage() == x.storage() && !same_place ? dense_copy(operand) : operand;
}

bool saves_result(UnaryOp kernel) {
  switch (kernel) {
    case UnaryOp::kExp:
    case UnaryOp::kSqrt:
    case UnaryOp::kRsqrt:
    case UnaryOp::kReciprocal:
    case UnaryOp::kTanh:
    case UnaryOp::kSigmoid:
      return true;
    default:
      return false;
  }
}

template <class F>
Tensor change_unary(
    std::string_view op, const Tensor& x, UnaryOp kernel, bool needs_floating, const F& recorded) {
  check_defined(op, x, "x");
  if (needs_floating) {
    check_floating(op, x.dtype());
  }
  if (must_record(op, x, false)) {
    const Tensor result = recorded(old_value(x));
    return saves_result(kernel) ? become_and_watch(x, result) : become(x, result);
  }
  const kernels::UnaryRow row = kernels::unary_row(kernel, x.dtype());
  check_row(row, op, x.dtype());
  kernels::apply_unary(row, extent_of(x), view_of(x), view_of(x));
  return changed(x);
}

template <class F>
Tensor change_binary(
    std::string_view op, const Tensor& x, const Tensor& other, BinaryOp kernel, const F& recorded) {
  check_defined(op, x, "x", other, "other");
  DType dtype = result_dtype(x, other);
  if (kernel == BinaryOp::kDiv && !is_floating(dtype)) {
    dtype = kFloat32;
  }
  check_fits(op, x, broadcast_shapes(op, x.shape(), other.shape()), dtype);
  if (must_record(op, x, other.requires_grad())) {
    // x may be its own operand, which then is the old value as well.
    const Tensor old = old_value(x);
    const Tensor result = recorded(old, other.is_same(x) ? old : other);
    watch_own_operand(x, result, other, kernel);
    return become(x, result);
  }
  if (dtype != x.dtype()) {
    const NoGradGuard guard;
    copy_values(recorded(x, other), x);
    return changed(x);
  }
  const kernels::BinaryRow row = kernels::binary_row(kernel, dtype);
  check_row(row, op, dtype);
  const Tensor operand = apart_from(x, broadcast_view(other.detach().to(dtype), x.shape()));
  kernels::apply_binary(row, extent_of(x), view_of(x), view_of(operand), view_of(x));
  return changed(x);
}

void apply_in_place(std::string_view op, const Tensor& x, ScalarOp kernel, double s) {
  const kernels::ScalarRow row = kernels::scalar_row(kernel, x.dtype());
  check_row(row, op, x.dtype());
  kernels::apply_scalar(row, extent_of(x), view_of(x), s, view_of(x));
}

template <class F>
Tensor change_scalar(
    std::string_view op, const Tensor& x, ScalarOp kernel, Scalar s, const F& recorded) {
  check_defined(op, x, "x");
  const bool divides = kernel == ScalarOp::kDiv && !is_floating(x.dtype());
  check_fits(op, x, x.shape(), divides ? kFloat32 : promote_scalar(x.dtype(), s.is_floating()));
  if (must_record(op, x, false)) {
    return become(x, recorded(old_value(x)));
  }
  if (s.exceeds_double() && x.dtype() == kInt64) {
    copy_values(recorded(x.detach()), x);  // exact, where the kernel takes a double
    return changed(x);
  }
  apply_in_place(op, x, kernel, s.value());
  return changed(x);
}

// New values for x that do not depend on the old ones. With a history, x keeps one: its old value
// has a gradient, which is zero.
struct Copy {
  static constexpr OpName name = "copy_";
  Shape source_shape;
  Tensor forward(const Tensor& x, const Tensor& source) {
    source_shape = source.shape();
    Tensor y = empty(x.shape(), x.dtype());
    copy_values(broadcast_view(source, x.shape()), y);
    return y;
  }
  std::array<Tensor, 2> backward(const Tensor& dy, NeedsGrad needs) const {
    return {needs[0] ? zeros_like(dy) : Tensor(), needs[1] ? sum_to(dy, source_shape) : Tensor()};
  }
};

}  // namespace

Tensor add_(const Tensor& x, const Tensor& other) {
  return change_binary("add_", x, other, BinaryOp::kAdd,
                       [](const Tensor& a, const Tensor& b) { return add(a, b); });
}
Tensor sub_(const Tensor& x, const Tensor& other) {
  return change_binary("sub_", x, other, BinaryOp::kSub,
                       [](const Tensor& a, const Tensor& b) { return sub(a, b); });
}
Tensor mul_(const Tensor& x, const Tensor& other) {
  return change_binary("mul_", x, other, BinaryOp::kMul,
                       [](const Tensor& a, const Tensor& b) { return mul(a, b); });
}
Tensor div_(const Tensor& x, const Tensor& other) {
  return change_binary("div_", x, other, BinaryOp::kDiv,
                       [](const Tensor& a, const Tensor& b) { return div(a, b); });
}

Tensor add_(const Tensor& x, Scalar other) {
  return change_scalar("add_", x, ScalarOp::kAdd, other,
                       [&](const Tensor& a) { return add(a, other); });
}
Tensor sub_(const Tensor& x, Scalar other) {
  return change_scalar("sub_", x, ScalarOp::kSub, other,
                       [&](const Tensor& a) { return sub(a, other); });
}
Tensor mul_(const Tensor& x, Scalar other) {
  return change_scalar("mul_", x, ScalarOp::kMul, other,
                       [&](const Tensor& a) { return mul(a, other); });
}
Tensor div_(const Tensor& x, Scalar other) {
  return change_scalar("div_", x, ScalarOp::kDiv, other,
                       [&](const Tensor& a) { return div(a, other); });
}
Tensor pow_(const Tensor& x, Scalar exponent) {
  return change_scalar("pow_", x, ScalarOp::kPow, exponent,
                       [&](const Tensor& a) { return pow(a, exponent); });
}

Tensor neg_(const Tensor& x) { return change_unary("neg_", x, UnaryOp::kNeg, false, neg); }
Tensor abs_(const Tensor& x) {
  return change_unary("abs_", x, UnaryOp::kAbs, false, [](const Tensor& a) { return abs(a); });
}
Tensor floor_(const Tensor& x) {
  return change_unary("floor_", x, UnaryOp::kFloor, false,
                      [](const Tensor& a) { return floor(a); });
}
Tensor ceil_(const Tensor& x) {
  return change_unary("ceil_", x, UnaryOp::kCeil, false, [](const Tensor& a) { return ceil(a); });
}
Tensor round_(const Tensor& x) {
  return change_unary("round_", x, UnaryOp::kRound, false,
                      [](const Tensor& a) { return round(a); });
}
Tensor square_(const Tensor& x) {
  return change_unary("square_", x, UnaryOp::kSquare, false, square);
}
Tensor exp_(const Tensor& x) {
  return change_unary("exp_", x, UnaryOp::kExp, true, [](const Tensor& a) { return exp(a); });
}
Tensor log_(const Tensor& x) {
  return change_unary("log_", x, UnaryOp::kLog, true, [](const Tensor& a) { return log(a); });
}
Tensor sqrt_(const Tensor& x) {
  return change_unary("sqrt_", x, UnaryOp::kSqrt, true, [](const Tensor& a) { return sqrt(a); });
}
Tensor rsqrt_(const Tensor& x) { return change_unary("rsqrt_", x, UnaryOp::kRsqrt, true, rsqrt); }
Tensor reciprocal_(const Tensor& x) {
  return change_unary("reciprocal_", x, UnaryOp::kReciprocal, true, reciprocal);
}
Tensor tanh_(const Tensor& x) {
  return change_unary("tanh_", x, UnaryOp::kTanh, true, [](const Tensor& a) { return tanh(a); });
}
Tensor sigmoid_(const Tensor& x) {
  return change_unary("sigmoid_", x, UnaryOp::kSigmoid, true, sigmoid);
}

Tensor clamp_(const Tensor& x, Scalar low, Scalar high) {
  check_defined("clamp_", x, "x");
  check<ValueError>(low.value() <= high.value(), "clamp_: the lower limit ", low.value(),
                    " is above the upper limit ", high.value());
  const bool has_low = low.value() != -std::numeric_limits<double>::infinity();
  const bool has_high = high.value() != std::numeric_limits<double>::infinity();
  const bool widens = (has_low && low.is_floating()) || (has_high && high.is_floating());
  check_fits("clamp_", x, x.shape(), promote_scalar(x.dtype(), widens));
  if (must_record("clamp_", x, false)) {
    return become(x, clamp(old_value(x), low, high));
  }
  if (x.dtype() == kInt64 && (low.exceeds_double() || high.exceeds_double())) {
    copy_values(clamp(x.detach(), low, high), x);
    return changed(x);
  }
  if (has_low) {
    apply_in_place("clamp_", x, ScalarOp::kClampMin, low.value());
  }
  if (has_high) {
    apply_in_place("clamp_", x, ScalarOp::kClampMax, high.value());
  }
  return changed(x);
}

Tensor masked_fill_(const Tensor& x, const Tensor& mask, Scalar value) {
  check_defined("masked_fill_", x, "x", mask, "mask");
  check<TypeError>(mask.dtype() == kBool, "masked_fill_: the mask must be bool, got ",
                   name_of(mask.dtype()));
  check_fits("masked_fill_", x, broadcast_shapes("masked_fill_", x.shape(), mask.shape()),
             x.dtype());
  if (must_record("masked_fill_", x, false)) {
    return become(x, masked_fill(old_value(x), mask, value));
  }
  const Tensor wide_mask = apart_from(x, broadcast_view(mask, x.shape()));
  const Tensor wide_value = broadcast_view(scalar(value, x.dtype()), x.shape());
  kernels::apply_ternary(kernels::where_row(x.dtype()), extent_of(x), view_of(wide_mask),
                         view_of(wide_value), view_of(x), view_of(x));
  return changed(x);
}

Tensor copy_(const Tensor& x, const Tensor& source) {
  check_defined("copy_", x, "x", source, "source");
  check<ValueError>(broadcast_shapes("copy_", x.shape(), source.shape()) == x.shape(),
                    "copy_: the source ", source.shape(), " does not broadcast to ", x.shape());
  if (must_record("copy_", x, source.requires_grad())) {
    const Tensor old = old_value(x);
    return become(x, apply_op(Copy{}, old, (source.is_same(x) ? old : source).to(x.dtype())));
  }
  copy_values(apart_from(x, broadcast_view(source, x.shape())), x);
  return changed(x);
}

Tensor fill_(const Tensor& x, Scalar value) {
  check_defined("fill_", x, "x");
  return copy_(x, scalar(value, x.dtype()));
}
Tensor zero_(const Tensor& x) {
  check_defined("zero_", x, "x");
  return fill_(x, 0);
}

}  // namespace tapestry

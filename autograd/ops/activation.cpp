#include "autograd/ops/activation.h"

#include <numbers>

#include "autograd/kernels/bias_activation.h"
#include "autograd/kernels/swiglu.h"
#include "autograd/ops/column_gradient.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/rows.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

using kernels::BinaryOp;
using kernels::UnaryOp;

struct Relu {
  static constexpr OpName name = "relu";
  SavedTensor y;
  Tensor forward(const Tensor& x) { return y.save_output(map_unary(name, UnaryOp::kRelu, x)); }
  Tensor backward(const Tensor& dy) const {
    // The output tells where x was positive, and the next layer keeps it anyway.
    if (grad_enabled()) {
      return where(le(y.get(), 0), scalar(0, dy.dtype()), dy);
    }
    return map_binary("relu_backward", BinaryOp::kReluBackward, y.get(), dy);
  }
};

// A smooth function with a kernel for f(x), one for dy f'(x), and a composed form.
template <class F>
struct Smooth {
  static constexpr OpName name = F::name;
  SavedTensor x;
  Tensor forward(const Tensor& x_) {
    x.save(x_);
    return map_unary(name, F::kForward, x_);
  }
  Tensor backward(const Tensor& dy) const {
    if (grad_enabled()) {
      return vjp([](const TensorList& in) { return F::composed(in[0]); }, dy, {x})[0];
    }
    return map_binary(F::name, F::kBackward, x.get(), dy);
  }
};

struct Gelu {
  static constexpr OpName name = "gelu";
  static constexpr OpName bias_name = "bias_gelu";
  static constexpr kernels::Activation kActivation = kernels::Activation::kGelu;
  static constexpr UnaryOp kForward = UnaryOp::kGelu;
  static constexpr BinaryOp kBackward = BinaryOp::kGeluBackward;
  static Tensor composed(const Tensor& x) { return composed_gelu(x); }
};
struct GeluTanh {
  static constexpr OpName name = "gelu_tanh";
  static constexpr OpName bias_name = "bias_gelu_tanh";
  static constexpr kernels::Activation kActivation = kernels::Activation::kGeluTanh;
  static constexpr UnaryOp kForward = UnaryOp::kGeluTanh;
  static constexpr BinaryOp kBackward = BinaryOp::kGeluTanhBackward;
  static Tensor composed(const Tensor& x) { return composed_gelu_tanh(x); }
};
struct Silu {
  static constexpr OpName name = "silu";
  static constexpr OpName bias_name = "bias_silu";
  static constexpr kernels::Activation kActivation = kernels::Activation::kSilu;
  static constexpr UnaryOp kForward = UnaryOp::kSilu;
  static constexpr BinaryOp kBackward = BinaryOp::kSiluBackward;
  static Tensor composed(const Tensor& x) { return composed_silu(x); }
};

// f(x + bias) for the functions above.
template <class F>
Tensor composed_with_bias(const Tensor& x, const Tensor& bias) {
  return F::composed(add(widen(x), bias.to(wide_dtype(x.dtype())))).to(x.dtype());
}

template <class F>
struct WithBias {
  static constexpr OpName name = F::bias_name;
  SavedTensor x, bias;

  Tensor forward(const Tensor& x_, const Tensor& bias_) {
    x.save(x_);
    bias.save(bias_);
    const Tensor values = dense(x_);
    const Tensor offset = dense(bias_);
    Tensor y = empty_like(values);
    kernels::bias_activation({.f = F::kActivation,
                              .dtype = values.dtype(),
                              .bias_dtype = offset.dtype(),
                              .rows = rows_in(values),
                              .n = offset.numel(),
                              .x = values.raw(),
                              .bias = offset.raw(),
                              .y = y.raw()});
    return y;
  }

  TensorList backward(const Tensor& dy, NeedsGrad needs) const {
    if (grad_enabled()) {
      return vjp([](const TensorList& in) { return composed_with_bias<F>(in[0], in[1]); }, dy,
                 {x, bias});
    }
    const Tensor parameter = bias;
    const Tensor values = dense(x.get());
    const Tensor offset = dense(parameter);
    const Tensor dense_dy = dense(dy);
    const Tensor dx = needs[0] ? empty_like(values) : Tensor();
    kernels::ColumnSums sums;
    const Tensor dbias = column_gradient(parameter, offset.dtype(), offset.numel(), needs[1], sums);
    kernels::bias_activation_backward({.f = F::kActivation,
                                       .dtype = values.dtype(),
                                       .bias_dtype = offset.dtype(),
                                       .rows = rows_in(values),
                                       .n = offset.numel(),
                                       .dy = dense_dy.raw(),
                                       .x = values.raw(),
                                       .bias = offset.raw(),
                                       .dx = dx.defined() ? dx.raw() : nullptr,
                                       .dbias = sums});
    return {dx, dbias};
  }

 private:
  static int64_t rows_in(const Tensor& x) {
    Shape rows = x.shape();
    rows.pop_back();
    return rows.numel();
  }
};

template <class F>
Tensor with_bias(const Tensor& x, const Tensor& bias) {
  constexpr std::string_view op = F::bias_name;
  check_floating(op, x.dtype());
  check<ValueError>(x.dim() >= 1 && bias.shape() == Shape{x.shape().back()}, op, ": bias ",
                    bias.shape(), " must have one entry per column of x ", x.shape());
  check<TypeError>(
      bias.dtype() == x.dtype() || (size_of(x.dtype()) == 2 && bias.dtype() == kFloat32), op,
      ": bias must be ", name_of(x.dtype()), " (x's dtype) or, for 16-bit x, float32; got ",
      name_of(bias.dtype()));
  return apply_op(WithBias<F>{}, x, bias);
}

// log(1 + u) for 0 <= u <= 1. Where 1 + u rounds, the quotient log(w) / (w - 1) is still that of
// the rounded w, and varies slowly. Source: Kahan; see Goldberg 1991, theorem 4.
Tensor log_one_plus(const Tensor& u) {
  const Tensor w = add(u, 1);
  const Tensor step = sub(w, 1);
  return where(eq(step, 0), u, div(mul(log(w), u), step));
}

struct Softplus {
  static constexpr OpName name = "softplus";
  SavedTensor x;
  Tensor forward(const Tensor& x_) {
    x.save(x_);
    // In float32 also for 16-bit inputs, so that the result is rounded once.
    const Tensor wide = size_of(x_.dtype()) < 4 ? to(x_, kFloat32) : x_;
    const Tensor tail = log_one_plus(exp(neg(abs(wide))));
    return to(add(map_unary("relu", UnaryOp::kRelu, wide), tail), x_.dtype());
  }
  Tensor backward(const Tensor& dy) const { return mul(dy, sigmoid(x.get())); }
};

void swiglu_rows(const RowView& gate, const RowView& up, Tensor& y) {
  kernels::swiglu({.dtype = y.dtype(),
                   .rows = gate.rows,
                   .n = gate.n,
                   .gate = gate.tensor.raw(),
                   .gate_stride = gate.stride,
                   .up = up.tensor.raw(),
                   .up_stride = up.stride,
                   .y = y.raw()});
}

void swiglu_backward_rows(const RowView& gate,
                          const RowView& up,
                          const Tensor& dy,
                          const RowView& dgate,
                          const RowView& dup) {
  kernels::swiglu_backward({.dtype = dy.dtype(),
                            .rows = gate.rows,
                            .n = gate.n,
                            .gate = gate.tensor.raw(),
                            .gate_stride = gate.stride,
                            .up = up.tensor.raw(),
                            .up_stride = up.stride,
                            .dy = dy.raw(),
                            .dgate = dgate.tensor.raw(),
                            .dgate_stride = dgate.stride,
                            .dup = dup.tensor.raw(),
                            .dup_stride = dup.stride});
}

// Splits the rows [gate, up] of a fused tensor.
std::array<RowView, 2> halves_of(const Tensor& x) {
  RowView gate = rows_of(x);
  gate.n /= 2;
  RowView up = gate;
  const Tensor whole = gate.tensor;
  Shape half = whole.shape();
  half.back() = gate.n;
  gate.tensor = alias(whole, half, whole.strides(), whole.offset());
  up.tensor = alias(whole, half, whole.strides(), whole.offset() + gate.n);
  return {gate, up};
}

struct SwiGlu {
  static constexpr OpName name = "swiglu";
  SavedTensor gate, up;
  Tensor forward(const Tensor& gate_, const Tensor& up_) {
    gate.save(gate_);
    up.save(up_);
    Tensor y = empty_like(gate_);
    swiglu_rows(rows_of(gate_), rows_of(up_), y);
    return y;
  }
  TensorList backward(const Tensor& dy, NeedsGrad /*needs*/) const {
    if (grad_enabled()) {
      return vjp([](const TensorList& in) { return composed_swiglu(in[0], in[1]); }, dy,
                 {gate, up});
    }
    const Tensor dense_dy = dense(dy);
    Tensor dgate = empty_like(dense_dy);
    Tensor dup = empty_like(dense_dy);
    swiglu_backward_rows(rows_of(gate), rows_of(up), dense_dy, rows_of(dgate), rows_of(dup));
    return {dgate, dup};
  }
};

struct FusedSwiGlu {
  static constexpr OpName name = "swiglu_fused";
  SavedTensor x;
  Tensor forward(const Tensor& x_) {
    x.save(x_);
    const auto [gate, up] = halves_of(x_);
    Shape shape = x_.shape();
    shape.back() /= 2;
    Tensor y = empty(shape, x_.dtype());
    swiglu_rows(gate, up, y);
    return y;
  }
  Tensor backward(const Tensor& dy) const {
    if (grad_enabled()) {
      return vjp([](const TensorList& in) { return composed_swiglu(in[0]); }, dy, {x})[0];
    }
    const Tensor values = x;
    const auto [gate, up] = halves_of(values);
    const Tensor dense_dy = dense(dy);
    Tensor dx = empty_like(values);
    const auto [dgate, dup] = halves_of(dx);
    swiglu_backward_rows(gate, up, dense_dy, dgate, dup);
    return dx;
  }
};

void check_swiglu(const Tensor& gate, const Tensor& up) {
  check_floating("swiglu", gate.dtype());
  check<TypeError>(gate.dtype() == up.dtype(), "swiglu: the dtypes of gate (",
                   name_of(gate.dtype()), ") and up (", name_of(up.dtype()), ") differ");
  check<ValueError>(gate.shape() == up.shape(), "swiglu: the shapes of gate ", gate.shape(),
                    " and up ", up.shape(), " differ");
}

void check_swiglu(const Tensor& x) {
  check_floating("swiglu", x.dtype());
  check<ValueError>(x.dim() >= 1 && x.shape().back() % 2 == 0,
                    "swiglu: the last axis holds gate and up, so it must be even; x is ",
                    x.shape());
}

template <class F>
Tensor smooth(const Tensor& x) {
  check_floating(F::name, x.dtype());
  return apply_op(Smooth<F>{}, x);
}

}  // namespace

Tensor relu(const Tensor& x) {
  check_defined("relu", x, "x");
  return apply_op(Relu{}, x);
}
Tensor squared_relu(const Tensor& x) {
  check_defined("squared_relu", x, "x");
  return square(relu(x));
}
Tensor gelu(const Tensor& x) {
  check_defined("gelu", x, "x");
  return smooth<Gelu>(x);
}
Tensor gelu_tanh(const Tensor& x) {
  check_defined("gelu_tanh", x, "x");
  return smooth<GeluTanh>(x);
}
Tensor silu(const Tensor& x) {
  check_defined("silu", x, "x");
  return smooth<Silu>(x);
}
Tensor softplus(const Tensor& x) {
  check_defined("softplus", x, "x");
  check_floating("softplus", x.dtype());
  return apply_op(Softplus{}, x);
}

Tensor soft_cap(const Tensor& x, double scale, double cap) {
  check<ValueError>(cap >= 0, "soft_cap: the cap must not be negative, got ", cap);
  return cap == 0 ? mul(x, scale) : mul(tanh(mul(x, scale / cap)), cap);
}

Tensor composed_gelu(const Tensor& x) {
  return mul(mul(x, 0.5), add(erf(mul(x, 1 / std::numbers::sqrt2)), 1));
}

Tensor composed_gelu_tanh(const Tensor& x) {
  constexpr double kRootTwoOverPi = 0.7978845608028654;
  const Tensor inner = mul(add(x, mul(pow(x, 3), 0.044715)), kRootTwoOverPi);
  return mul(mul(x, 0.5), add(tanh(inner), 1));
}

Tensor composed_silu(const Tensor& x) { return mul(x, sigmoid(x)); }

Tensor bias_gelu(const Tensor& x, const Tensor& bias) {
  check_defined("bias_gelu", x, "x", bias, "bias");
  return with_bias<Gelu>(x, bias);
}
Tensor bias_gelu_tanh(const Tensor& x, const Tensor& bias) {
  check_defined("bias_gelu_tanh", x, "x", bias, "bias");
  return with_bias<GeluTanh>(x, bias);
}
Tensor bias_silu(const Tensor& x, const Tensor& bias) {
  check_defined("bias_silu", x, "x", bias, "bias");
  return with_bias<Silu>(x, bias);
}
Tensor composed_bias_gelu(const Tensor& x, const Tensor& bias) {
  return composed_with_bias<Gelu>(x, bias);
}
Tensor composed_bias_gelu_tanh(const Tensor& x, const Tensor& bias) {
  return composed_with_bias<GeluTanh>(x, bias);
}
Tensor composed_bias_silu(const Tensor& x, const Tensor& bias) {
  return composed_with_bias<Silu>(x, bias);
}

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  check_defined("swiglu", gate, "gate", up, "up");
  check_swiglu(gate, up);
  if (gate.dim() == 0) {
    return swiglu(gate.reshape({1}), up.reshape({1})).reshape({});
  }
  return apply_op(SwiGlu{}, gate, up);
}

Tensor swiglu(const Tensor& x) {
  check_defined("swiglu", x, "x");
  check_swiglu(x);
  return apply_op(FusedSwiGlu{}, x);
}

Tensor composed_swiglu(const Tensor& gate, const Tensor& up) {
  check_swiglu(gate, up);
  return mul(composed_silu(gate), up);
}

Tensor composed_swiglu(const Tensor& x) {
  check_swiglu(x);
  const int64_t n = x.shape().back() / 2;
  return composed_swiglu(slice(x, -1, 0, n), slice(x, -1, n, 2 * n));
}

}  // namespace tapestry

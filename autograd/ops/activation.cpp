#include "autograd/ops/activation.h"

#include <cmath>
#include <numbers>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

using kernels::BinaryOp;
using kernels::UnaryOp;

struct Relu {
  static constexpr std::string_view name = "relu";
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
  static constexpr std::string_view name = F::name;
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
  static constexpr std::string_view name = "gelu";
  static constexpr UnaryOp kForward = UnaryOp::kGelu;
  static constexpr BinaryOp kBackward = BinaryOp::kGeluBackward;
  static Tensor composed(const Tensor& x) { return composed_gelu(x); }
};
struct GeluTanh {
  static constexpr std::string_view name = "gelu_tanh";
  static constexpr UnaryOp kForward = UnaryOp::kGeluTanh;
  static constexpr BinaryOp kBackward = BinaryOp::kGeluTanhBackward;
  static Tensor composed(const Tensor& x) { return composed_gelu_tanh(x); }
};
struct Silu {
  static constexpr std::string_view name = "silu";
  static constexpr UnaryOp kForward = UnaryOp::kSilu;
  static constexpr BinaryOp kBackward = BinaryOp::kSiluBackward;
  static Tensor composed(const Tensor& x) { return composed_silu(x); }
};

// log(1 + u) for 0 <= u <= 1. Where 1 + u rounds, the quotient log(w) / (w - 1) is still that of
// the rounded w, and varies slowly. Source: Kahan; see Goldberg 1991, theorem 4.
Tensor log_one_plus(const Tensor& u) {
  const Tensor w = add(u, 1);
  const Tensor step = sub(w, 1);
  return where(eq(step, 0), u, div(mul(log(w), u), step));
}

struct Softplus {
  static constexpr std::string_view name = "softplus";
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

template <class F>
Tensor smooth(const Tensor& x) {
  check_floating(F::name, x.dtype());
  return apply_op(Smooth<F>{}, x);
}

}  // namespace

Tensor relu(const Tensor& x) { return apply_op(Relu{}, x); }
Tensor squared_relu(const Tensor& x) { return square(relu(x)); }
Tensor gelu(const Tensor& x) { return smooth<Gelu>(x); }
Tensor gelu_tanh(const Tensor& x) { return smooth<GeluTanh>(x); }
Tensor silu(const Tensor& x) { return smooth<Silu>(x); }
Tensor softplus(const Tensor& x) {
  check_floating("softplus", x.dtype());
  return apply_op(Softplus{}, x);
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

}  // namespace tapestry

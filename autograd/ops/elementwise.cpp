#include "autograd/ops/elementwise.h"

#include <cmath>

#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/column_gradient.h"
#include "autograd/ops/map.h"
#include "autograd/ops/reduction.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

using kernels::BinaryOp;
using kernels::ScalarOp;
using kernels::UnaryOp;

// ---------------------------------------------------------------------------------- two operands

// Remembers the shapes that the gradients are summed back to.
struct Broadcast {
  Shape a_shape;
  Shape b_shape;
  void remember(const Tensor& a, const Tensor& b) {
    a_shape = a.shape();
    b_shape = b.shape();
  }
};

struct Add : Broadcast {
  static constexpr OpName name = "add";
  Tensor bias = {};  // a leaf that is added to every row, whose main_grad may take exact sums
  Tensor forward(const Tensor& a, const Tensor& b) {
    remember(a, b);
    if (in_exact() && b.is_leaf() && b.requires_grad() && b.dim() == 1 && a.dim() > 1 &&
        a.shape().back() == b.shape()[0]) {
      bias = b;
    }
    return map_binary(name, BinaryOp::kAdd, a, b);
  }
  std::array<Tensor, 2> backward(const Tensor& dy, NeedsGrad needs) const {
    Tensor db = needs[1] && bias.defined() ? exact_row_sums(bias, dy) : Tensor();
    if (needs[1] && !db.defined()) {
      db = sum_to(dy, b_shape);
    }
    return {needs[0] ? sum_to(dy, a_shape) : Tensor(), db};
  }
};

struct Sub : Broadcast {
  static constexpr OpName name = "sub";
  Tensor forward(const Tensor& a, const Tensor& b) {
    remember(a, b);
    return map_binary(name, BinaryOp::kSub, a, b);
  }
  std::array<Tensor, 2> backward(const Tensor& dy, NeedsGrad needs) const {
    return {needs[0] ? sum_to(dy, a_shape) : Tensor(),
            needs[1] ? sum_to(neg(dy), b_shape) : Tensor()};
  }
};

struct Mul {
  static constexpr OpName name = "mul";
  SavedTensor a, b;
  Shape a_shape, b_shape;
  Tensor forward(const Tensor& a_, const Tensor& b_) {
    a_shape = a_.shape();
    b_shape = b_.shape();
    // Each is needed only for the other's gradient.
    if (b_.requires_grad()) {
      a.save(a_);
    }
    if (a_.requires_grad()) {
      b.save(b_);
    }
    return map_binary(name, BinaryOp::kMul, a_, b_);
  }
  std::array<Tensor, 2> backward(const Tensor& dy, NeedsGrad needs) const {
    return {needs[0] ? sum_to(mul(dy, b.get()), a_shape) : Tensor(),
            needs[1] ? sum_to(mul(dy, a.get()), b_shape) : Tensor()};
  }
};

struct Div {
  static constexpr OpName name = "div";
  SavedTensor a, b;
  Shape a_shape;
  Tensor forward(const Tensor& a_, const Tensor& b_) {
    a_shape = a_.shape();
    b.save(b_);
    if (b_.requires_grad()) {
      a.save(a_);
    }
    return map_binary(name, BinaryOp::kDiv, a_, b_);
  }
  std::array<Tensor, 2> backward(const Tensor& dy, NeedsGrad needs) const {
    const Tensor divisor = b;
    return {needs[0] ? sum_to(div(dy, divisor), a_shape) : Tensor(),
            needs[1] ? sum_to(mul(neg(dy), div(div(a.get(), divisor), divisor)), divisor.shape())
                     : Tensor()};
  }
};

struct Pow {
  static constexpr OpName name = "pow";
  SavedTensor a, b, y;
  Tensor forward(const Tensor& a_, const Tensor& b_) {
    a.save(a_);
    b.save(b_);
    return y.save_output(map_binary(name, BinaryOp::kPow, a_, b_));
  }
  std::array<Tensor, 2> backward(const Tensor& dy, NeedsGrad needs) const {
    const Tensor base = a;
    const Tensor exponent = b;
    std::array<Tensor, 2> out;
    if (needs[0]) {
      // b a^(b-1), where the power of a zero base with b = 0 would be infinite times zero.
      const Tensor slope = mul(exponent, pow(base, sub(exponent, 1)));
      out[0] = sum_to(mul(dy, masked_fill(slope, eq(exponent, 0), 0)), base.shape());
    }
    if (needs[1]) {
      const Tensor flat = logical_and(eq(base, 0), ge(exponent, 0));
      out[1] = sum_to(mul(dy, masked_fill(mul(y.get(), log(base)), flat, 0)), exponent.shape());
    }
    return out;
  }
};

template <BinaryOp kKernel>
struct Extremum {
  static constexpr OpName name = kKernel == BinaryOp::kMaximum ? "maximum" : "minimum";
  SavedTensor a, b;
  Tensor forward(const Tensor& a_, const Tensor& b_) {
    a.save(a_);
    b.save(b_);
    return map_binary(name, kKernel, a_, b_);
  }
  std::array<Tensor, 2> backward(const Tensor& dy, NeedsGrad needs) const {
    const Tensor left = a;
    const Tensor right = b;
    // A gradient of both where either is NaN, as in PyTorch: neither loses.
    const Tensor portion = sub(1, mul(eq(left, right).to(dy.dtype()), 0.5));
    const auto share = [&](const Tensor& mine, const Tensor& other) {
      const Tensor loses = (kKernel == BinaryOp::kMaximum ? lt(mine, other) : gt(mine, other));
      return sum_to(masked_fill(mul(dy, portion), loses, 0), mine.shape());
    };
    return {needs[0] ? share(left, right) : Tensor(), needs[1] ? share(right, left) : Tensor()};
  }
};

template <BinaryOp kKernel>
struct Compare {
  static constexpr OpName name = [] {
    switch (kKernel) {
      case BinaryOp::kEq:
        return "eq";
      case BinaryOp::kNe:
        return "ne";
      case BinaryOp::kLt:
        return "lt";
      case BinaryOp::kLe:
        return "le";
      case BinaryOp::kGt:
        return "gt";
      case BinaryOp::kGe:
        return "ge";
      case BinaryOp::kLogicalAnd:
        return "logical_and";
      case BinaryOp::kLogicalOr:
        return "logical_or";
      default:
        return "logical_xor";
    }
  }();
  static constexpr bool differentiable = false;
  Tensor forward(const Tensor& a, const Tensor& b) { return map_binary(name, kKernel, a, b); }
};

// What an op has saved of its operands is a converted copy: of the operand itself, backward must
// notice a change as well.
void watch_converted(const Tensor& y, const Tensor& operand, const Tensor& converted, bool saved) {
  if (!converted.is_same(operand) && saved) {
    watch_versions(y, {operand});
  }
}

template <class Op>
Tensor apply_promoted(Op op, const Tensor& a, const Tensor& b) {
  const DType dtype = result_dtype(a, b);
  return apply_op(std::move(op), a.to(dtype), b.to(dtype));
}

// For an op that saves both operands, or each for the gradient of the other one.
template <class Op>
Tensor apply_promoted_and_watch(Op op, const Tensor& a, const Tensor& b, DType dtype, bool both) {
  const Tensor left = a.to(dtype);
  const Tensor right = b.to(dtype);
  const Tensor y = apply_op(std::move(op), left, right);
  if (y.requires_grad() && a.dtype() != b.dtype()) {
    watch_converted(y, a, left, both || b.requires_grad());
    watch_converted(y, b, right, both || a.requires_grad());
  }
  return y;
}

template <BinaryOp kKernel>
Tensor compare(const Tensor& a, const Tensor& b) {
  return apply_promoted(Compare<kKernel>{}, a, b);
}

Tensor to_floating(const Tensor& x) { return is_floating(x.dtype()) ? x : x.to(kFloat32); }

// ----------------------------------------------------------------------------- tensor and number

Tensor widen_for(const Tensor& x, Scalar s) {
  return x.to(promote_scalar(x.dtype(), s.is_floating()));
}

// The kernels have numbers as double. Beside int64 an integer of more bits than that is a tensor.
bool is_long_beside(const Tensor& x, Scalar s) { return s.exceeds_double() && x.dtype() == kInt64; }
Tensor long_operand(Scalar s) { return scalar(s, kInt64); }

// One that the dtype of smaller integers does not hold is compared as int64.
Tensor widen_to_compare(const Tensor& x, Scalar s) {
  const bool is_small = x.dtype() == kInt32 || x.dtype() == kInt8 || x.dtype() == kUInt8;
  const int bits = static_cast<int>(size_of(x.dtype())) * 8;
  const bool has_sign = x.dtype() != kUInt8;
  const int64_t above = is_small ? int64_t{1} << (has_sign ? bits - 1 : bits) : 0;
  const bool fits = s.integer() < above && s.integer() >= (has_sign ? -above : 0);
  return is_small && !s.is_floating() && !fits ? x.to(kInt64) : widen_for(x, s);
}

struct AddScalar {
  static constexpr OpName name = "add_scalar";
  double s;
  Tensor forward(const Tensor& x) { return map_scalar("add", ScalarOp::kAdd, x, s); }
  Tensor backward(const Tensor& dy) const { return dy; }
};

struct RsubScalar {
  static constexpr OpName name = "rsub_scalar";
  double s;
  Tensor forward(const Tensor& x) { return map_scalar("sub", ScalarOp::kRsub, x, s); }
  Tensor backward(const Tensor& dy) const { return neg(dy); }
};

struct MulScalar {
  static constexpr OpName name = "mul_scalar";
  double s;
  Tensor forward(const Tensor& x) { return map_scalar("mul", ScalarOp::kMul, x, s); }
  Tensor backward(const Tensor& dy) const { return mul(dy, s); }
};

struct DivScalar {
  static constexpr OpName name = "div_scalar";
  double s;
  Tensor forward(const Tensor& x) { return map_scalar("div", ScalarOp::kDiv, x, s); }
  Tensor backward(const Tensor& dy) const { return div(dy, s); }
};

struct PowScalar {
  static constexpr OpName name = "pow_scalar";
  double exponent;
  SavedTensor x;
  Tensor forward(const Tensor& x_) {
    x.save(x_);
    return map_scalar("pow", ScalarOp::kPow, x_, exponent);
  }
  Tensor backward(const Tensor& dy) const {
    const Tensor base = x;  // notices a change in place, needed or not
    if (exponent == 0) {
      return mul(dy, 0);
    }
    return mul(dy, mul(pow(base, exponent - 1), exponent));
  }
};

struct RpowScalar {
  static constexpr OpName name = "rpow_scalar";
  double base;
  SavedTensor y;
  Tensor forward(const Tensor& x) {
    watch_input(x);  // PyTorch saves it, too
    return y.save_output(map_scalar("pow", ScalarOp::kRpow, x, base));
  }
  Tensor backward(const Tensor& dy) const {
    const Tensor power = y;
    return base == 0 ? mul(dy, 0) : mul(dy, mul(power, std::log(base)));
  }
};

template <ScalarOp kKernel>
struct CompareScalar {
  static constexpr OpName name = [] {
    switch (kKernel) {
      case ScalarOp::kEq:
        return "eq_scalar";
      case ScalarOp::kNe:
        return "ne_scalar";
      case ScalarOp::kLt:
        return "lt_scalar";
      case ScalarOp::kLe:
        return "le_scalar";
      case ScalarOp::kGt:
        return "gt_scalar";
      default:
        return "ge_scalar";
    }
  }();
  static constexpr bool differentiable = false;
  double s;
  Tensor forward(const Tensor& x) { return map_scalar(name, kKernel, x, s); }
};

template <ScalarOp kKernel, BinaryOp kOfTensors>
Tensor compare(const Tensor& x, Scalar s) {
  const Tensor wide = widen_to_compare(x, s);
  if (is_long_beside(wide, s)) {
    return compare<kOfTensors>(wide, long_operand(s));
  }
  return apply_op(CompareScalar<kKernel>{s.value()}, wide);
}

// ------------------------------------------------------------------------------------ one operand

struct Neg {
  static constexpr OpName name = "neg";
  Tensor forward(const Tensor& x) { return map_unary(name, UnaryOp::kNeg, x); }
  Tensor backward(const Tensor& dy) const { return neg(dy); }
};

struct Abs {
  static constexpr OpName name = "abs";
  SavedTensor x;
  Tensor forward(const Tensor& x_) {
    x.save(x_);
    return map_unary(name, UnaryOp::kAbs, x_);
  }
  Tensor backward(const Tensor& dy) const { return mul(dy, sign(x.get())); }
};

// Functions that are constant almost everywhere.
template <UnaryOp kKernel>
struct Step {
  static constexpr OpName name = [] {
    switch (kKernel) {
      case UnaryOp::kSign:
        return "sign";
      case UnaryOp::kFloor:
        return "floor";
      case UnaryOp::kCeil:
        return "ceil";
      default:
        return "round";
    }
  }();
  Tensor forward(const Tensor& x) { return map_unary(name, kKernel, x); }
  Tensor backward(const Tensor& dy) const { return zeros_like(dy); }
};

struct Exp {
  static constexpr OpName name = "exp";
  SavedTensor y;
  Tensor forward(const Tensor& x) { return y.save_output(map_unary(name, UnaryOp::kExp, x)); }
  Tensor backward(const Tensor& dy) const { return mul(dy, y.get()); }
};

struct Log {
  static constexpr OpName name = "log";
  SavedTensor x;
  Tensor forward(const Tensor& x_) {
    x.save(x_);
    return map_unary(name, UnaryOp::kLog, x_);
  }
  Tensor backward(const Tensor& dy) const { return div(dy, x.get()); }
};

struct Sqrt {
  static constexpr OpName name = "sqrt";
  SavedTensor y;
  Tensor forward(const Tensor& x) { return y.save_output(map_unary(name, UnaryOp::kSqrt, x)); }
  Tensor backward(const Tensor& dy) const { return div(dy, mul(y.get(), 2)); }
};

struct Rsqrt {
  static constexpr OpName name = "rsqrt";
  SavedTensor y;
  Tensor forward(const Tensor& x) { return y.save_output(map_unary(name, UnaryOp::kRsqrt, x)); }
  Tensor backward(const Tensor& dy) const { return mul(mul(dy, -0.5), pow(y.get(), 3)); }
};

struct Reciprocal {
  static constexpr OpName name = "reciprocal";
  SavedTensor y;
  Tensor forward(const Tensor& x) {
    return y.save_output(map_unary(name, UnaryOp::kReciprocal, x));
  }
  Tensor backward(const Tensor& dy) const { return neg(mul(dy, square(y.get()))); }
};

struct Square {
  static constexpr OpName name = "square";
  SavedTensor x;
  Tensor forward(const Tensor& x_) {
    x.save(x_);
    return map_unary(name, UnaryOp::kSquare, x_);
  }
  Tensor backward(const Tensor& dy) const {
    // Recorded as the power that PyTorch takes it for: gradients of gradients go the same ways,
    // some of which carry zeros, and release the same nodes.
    const Tensor base = x;
    return mul(dy, mul(grad_enabled() ? pow(base, 1) : base, 2));
  }
};

struct Sin {
  static constexpr OpName name = "sin";
  SavedTensor x;
  Tensor forward(const Tensor& x_) {
    x.save(x_);
    return map_unary(name, UnaryOp::kSin, x_);
  }
  Tensor backward(const Tensor& dy) const { return mul(dy, cos(x.get())); }
};

struct Cos {
  static constexpr OpName name = "cos";
  SavedTensor x;
  Tensor forward(const Tensor& x_) {
    x.save(x_);
    return map_unary(name, UnaryOp::kCos, x_);
  }
  Tensor backward(const Tensor& dy) const { return neg(mul(dy, sin(x.get()))); }
};

struct Tanh {
  static constexpr OpName name = "tanh";
  SavedTensor y;
  Tensor forward(const Tensor& x) { return y.save_output(map_unary(name, UnaryOp::kTanh, x)); }
  Tensor backward(const Tensor& dy) const {
    if (grad_enabled()) {
      return mul(dy, sub(1, square(y.get())));
    }
    return map_binary("tanh_backward", BinaryOp::kTanhBackward, y.get(), dy);
  }
};

struct Sigmoid {
  static constexpr OpName name = "sigmoid";
  SavedTensor y;
  Tensor forward(const Tensor& x) { return y.save_output(map_unary(name, UnaryOp::kSigmoid, x)); }
  Tensor backward(const Tensor& dy) const {
    if (grad_enabled()) {
      const Tensor s = y;
      return mul(dy, mul(s, sub(1, s)));
    }
    return map_binary("sigmoid_backward", BinaryOp::kSigmoidBackward, y.get(), dy);
  }
};

struct Erf {
  static constexpr OpName name = "erf";
  SavedTensor x;
  Tensor forward(const Tensor& x_) {
    x.save(x_);
    return map_unary(name, UnaryOp::kErf, x_);
  }
  Tensor backward(const Tensor& dy) const {
    constexpr double kTwoOverRootPi = 1.1283791670955126;
    return mul(dy, mul(exp(neg(square(x.get()))), kTwoOverRootPi));
  }
};

struct Clamp {
  static constexpr OpName name = "clamp";
  double low, high;
  SavedTensor x;
  Tensor forward(const Tensor& x_) {
    x.save(x_);
    Tensor y = x_;
    if (low != -std::numeric_limits<double>::infinity()) {
      y = map_scalar(name, ScalarOp::kClampMin, y, low);
    }
    if (high != std::numeric_limits<double>::infinity()) {
      y = map_scalar(name, ScalarOp::kClampMax, y, high);
    }
    return y;
  }
  Tensor backward(const Tensor& dy) const {
    const Tensor input = x.get().detach();
    return mul(dy, logical_and(ge(input, low), le(input, high)).to(dy.dtype()));
  }
};

template <UnaryOp kKernel>
struct Test {
  static constexpr OpName name = [] {
    switch (kKernel) {
      case UnaryOp::kLogicalNot:
        return "logical_not";
      case UnaryOp::kIsFinite:
        return "isfinite";
      default:
        return "isnan";
    }
  }();
  static constexpr bool differentiable = false;
  Tensor forward(const Tensor& x) { return map_unary(name, kKernel, x); }
};

// -------------------------------------------------------------------------------------- selection

struct Where {
  static constexpr OpName name = "where";
  SavedTensor condition;
  Shape a_shape, b_shape;
  Tensor forward(const Tensor& condition_, const Tensor& a, const Tensor& b) {
    condition.save(condition_);
    a_shape = a.shape();
    b_shape = b.shape();
    return map_where(name, condition_, a, b);
  }
  std::array<Tensor, 3> backward(const Tensor& dy, NeedsGrad needs) const {
    const Tensor mask = condition;
    const Tensor zero = scalar(0, dy.dtype());
    return {Tensor(), needs[1] ? sum_to(where(mask, dy, zero), a_shape) : Tensor(),
            needs[2] ? sum_to(where(mask, zero, dy), b_shape) : Tensor()};
  }
};

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
  check_defined("add", a, "a", b, "b");
  return apply_promoted(Add{}, a, b);
}
Tensor add(const Tensor& a, Scalar b) {
  check_defined("add", a, "a");
  if (is_long_beside(a, b)) {
    return add(a, long_operand(b));
  }
  return apply_op(AddScalar{b.value()}, widen_for(a, b));
}
Tensor sub(const Tensor& a, const Tensor& b) {
  check_defined("sub", a, "a", b, "b");
  return apply_promoted(Sub{}, a, b);
}
Tensor sub(const Tensor& a, Scalar b) {
  check_defined("sub", a, "a");
  return add(a, -b);
}
Tensor sub(Scalar a, const Tensor& b) {
  check_defined("sub", b, "b");
  if (is_long_beside(b, a)) {
    return sub(long_operand(a), b);
  }
  return apply_op(RsubScalar{a.value()}, widen_for(b, a));
}
Tensor mul(const Tensor& a, const Tensor& b) {
  check_defined("mul", a, "a", b, "b");
  return apply_promoted_and_watch(Mul{}, a, b, result_dtype(a, b), false);
}
Tensor mul(const Tensor& a, Scalar b) {
  check_defined("mul", a, "a");
  if (is_long_beside(a, b)) {
    return mul(a, long_operand(b));
  }
  return apply_op(MulScalar{b.value()}, widen_for(a, b));
}
Tensor div(const Tensor& a, const Tensor& b) {
  check_defined("div", a, "a", b, "b");
  const DType dtype = result_dtype(a, b);
  const DType real = is_floating(dtype) ? dtype : kFloat32;
  return apply_promoted_and_watch(Div{}, a, b, real, true);
}
Tensor div(const Tensor& a, Scalar b) {
  check_defined("div", a, "a");
  return apply_op(DivScalar{b.value()}, to_floating(a));
}
Tensor div(Scalar a, const Tensor& b) {
  check_defined("div", b, "b");
  return mul(reciprocal(b), a);
}
Tensor pow(const Tensor& a, const Tensor& b) {
  check_defined("pow", a, "a", b, "b");
  return apply_promoted_and_watch(Pow{}, a, b, result_dtype(a, b), true);
}
Tensor pow(const Tensor& a, Scalar exponent) {
  check_defined("pow", a, "a");
  if (is_long_beside(a, exponent)) {
    return pow(a, long_operand(exponent));
  }
  return apply_op(PowScalar{exponent.value(), {}}, widen_for(a, exponent));
}
Tensor pow(Scalar a, const Tensor& exponent) {
  check_defined("pow", exponent, "exponent");
  if (is_long_beside(exponent, a)) {
    return pow(long_operand(a), exponent);
  }
  return apply_op(RpowScalar{a.value(), {}}, widen_for(exponent, a));
}
Tensor maximum(const Tensor& a, const Tensor& b) {
  check_defined("maximum", a, "a", b, "b");
  return apply_promoted_and_watch(Extremum<BinaryOp::kMaximum>{}, a, b, result_dtype(a, b), true);
}
Tensor minimum(const Tensor& a, const Tensor& b) {
  check_defined("minimum", a, "a", b, "b");
  return apply_promoted_and_watch(Extremum<BinaryOp::kMinimum>{}, a, b, result_dtype(a, b), true);
}

Tensor neg(const Tensor& x) {
  check_defined("neg", x, "x");
  return apply_op(Neg{}, x);
}
Tensor abs(const Tensor& x) {
  check_defined("abs", x, "x");
  return apply_op(Abs{}, x);
}
Tensor sign(const Tensor& x) {
  check_defined("sign", x, "x");
  return apply_op(Step<UnaryOp::kSign>{}, x);
}
Tensor floor(const Tensor& x) {
  check_defined("floor", x, "x");
  return apply_op(Step<UnaryOp::kFloor>{}, x);
}
Tensor ceil(const Tensor& x) {
  check_defined("ceil", x, "x");
  return apply_op(Step<UnaryOp::kCeil>{}, x);
}
Tensor round(const Tensor& x) {
  check_defined("round", x, "x");
  return apply_op(Step<UnaryOp::kRound>{}, x);
}
Tensor exp(const Tensor& x) {
  check_defined("exp", x, "x");
  return apply_op(Exp{}, to_floating(x));
}
Tensor log(const Tensor& x) {
  check_defined("log", x, "x");
  return apply_op(Log{}, to_floating(x));
}
Tensor sqrt(const Tensor& x) {
  check_defined("sqrt", x, "x");
  return apply_op(Sqrt{}, to_floating(x));
}
Tensor rsqrt(const Tensor& x) {
  check_defined("rsqrt", x, "x");
  return apply_op(Rsqrt{}, to_floating(x));
}
Tensor reciprocal(const Tensor& x) {
  check_defined("reciprocal", x, "x");
  return apply_op(Reciprocal{}, to_floating(x));
}
Tensor square(const Tensor& x) {
  check_defined("square", x, "x");
  return apply_op(Square{}, x);
}
Tensor sin(const Tensor& x) {
  check_defined("sin", x, "x");
  return apply_op(Sin{}, to_floating(x));
}
Tensor cos(const Tensor& x) {
  check_defined("cos", x, "x");
  return apply_op(Cos{}, to_floating(x));
}
Tensor tanh(const Tensor& x) {
  check_defined("tanh", x, "x");
  return apply_op(Tanh{}, to_floating(x));
}
Tensor sigmoid(const Tensor& x) {
  check_defined("sigmoid", x, "x");
  return apply_op(Sigmoid{}, to_floating(x));
}
Tensor erf(const Tensor& x) {
  check_defined("erf", x, "x");
  return apply_op(Erf{}, to_floating(x));
}
Tensor clamp(const Tensor& x, Scalar low, Scalar high) {
  check_defined("clamp", x, "x");
  check<ValueError>(low.value() <= high.value(), "clamp: the lower limit ", low.value(),
                    " is above the upper limit ", high.value());
  if (is_long_beside(x, low) || is_long_beside(x, high)) {
    const auto limited = [&](const Tensor& from, Scalar limit, bool is_low) {
      const Tensor bound = limit.is_floating() ? scalar(limit) : long_operand(limit);
      return std::isinf(limit.value()) ? from
             : is_low                  ? maximum(from, bound)
                                       : minimum(from, bound);
    };
    return limited(limited(x, low, true), high, false);
  }
  constexpr double kNone = std::numeric_limits<double>::infinity();
  const bool widens =
      (low.is_floating() && low.value() != -kNone) || (high.is_floating() && high.value() != kNone);
  return apply_op(Clamp{low.value(), high.value(), {}}, x.to(promote_scalar(x.dtype(), widens)));
}

Tensor eq(const Tensor& a, const Tensor& b) {
  check_defined("eq", a, "a", b, "b");
  return compare<BinaryOp::kEq>(a, b);
}
Tensor ne(const Tensor& a, const Tensor& b) {
  check_defined("ne", a, "a", b, "b");
  return compare<BinaryOp::kNe>(a, b);
}
Tensor lt(const Tensor& a, const Tensor& b) {
  check_defined("lt", a, "a", b, "b");
  return compare<BinaryOp::kLt>(a, b);
}
Tensor le(const Tensor& a, const Tensor& b) {
  check_defined("le", a, "a", b, "b");
  return compare<BinaryOp::kLe>(a, b);
}
Tensor gt(const Tensor& a, const Tensor& b) {
  check_defined("gt", a, "a", b, "b");
  return compare<BinaryOp::kGt>(a, b);
}
Tensor ge(const Tensor& a, const Tensor& b) {
  check_defined("ge", a, "a", b, "b");
  return compare<BinaryOp::kGe>(a, b);
}
Tensor eq(const Tensor& a, Scalar b) {
  check_defined("eq", a, "a");
  return compare<ScalarOp::kEq, BinaryOp::kEq>(a, b);
}
Tensor ne(const Tensor& a, Scalar b) {
  check_defined("ne", a, "a");
  return compare<ScalarOp::kNe, BinaryOp::kNe>(a, b);
}
Tensor lt(const Tensor& a, Scalar b) {
  check_defined("lt", a, "a");
  return compare<ScalarOp::kLt, BinaryOp::kLt>(a, b);
}
Tensor le(const Tensor& a, Scalar b) {
  check_defined("le", a, "a");
  return compare<ScalarOp::kLe, BinaryOp::kLe>(a, b);
}
Tensor gt(const Tensor& a, Scalar b) {
  check_defined("gt", a, "a");
  return compare<ScalarOp::kGt, BinaryOp::kGt>(a, b);
}
Tensor ge(const Tensor& a, Scalar b) {
  check_defined("ge", a, "a");
  return compare<ScalarOp::kGe, BinaryOp::kGe>(a, b);
}
Tensor logical_and(const Tensor& a, const Tensor& b) {
  check_defined("logical_and", a, "a", b, "b");
  return compare<BinaryOp::kLogicalAnd>(a, b);
}
Tensor logical_or(const Tensor& a, const Tensor& b) {
  check_defined("logical_or", a, "a", b, "b");
  return compare<BinaryOp::kLogicalOr>(a, b);
}
Tensor logical_xor(const Tensor& a, const Tensor& b) {
  check_defined("logical_xor", a, "a", b, "b");
  return compare<BinaryOp::kLogicalXor>(a, b);
}
Tensor logical_not(const Tensor& x) {
  check_defined("logical_not", x, "x");
  return apply_op(Test<UnaryOp::kLogicalNot>{}, x);
}
Tensor isfinite(const Tensor& x) {
  check_defined("isfinite", x, "x");
  return apply_op(Test<UnaryOp::kIsFinite>{}, x);
}
Tensor isnan(const Tensor& x) {
  check_defined("isnan", x, "x");
  return apply_op(Test<UnaryOp::kIsNan>{}, x);
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  check_defined("where", condition, "condition", a, "a", b, "b");
  const DType dtype = result_dtype(a, b);
  return apply_op(Where{}, condition, a.to(dtype), b.to(dtype));
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value) {
  check_defined("masked_fill", x, "x", mask, "mask");
  check<ValueError>(broadcast_shapes("masked_fill", x.shape(), mask.shape()) == x.shape(),
                    "masked_fill: the mask ", mask.shape(), " does not broadcast to ", x.shape());
  return where(mask, scalar(value, x.dtype()), x);
}

}  // namespace tapestry

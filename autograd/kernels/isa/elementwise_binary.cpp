// Element-wise functions of two operands, and of one operand and a number.
#include "autograd/kernels/elementwise.h"
#include "autograd/kernels/isa/elementwise_loops.h"

namespace tapestry::kernels::TAPESTRY_ISA {

BinaryRow binary_row_of(BinaryOp op, DType dtype);
ScalarRow scalar_row_of(ScalarOp op, DType dtype);

namespace {

template <class T>
inline constexpr bool kIsBool = std::is_same_v<T, uint8_t>;

/// a^b by squaring, wrapping; a negative power truncates 1 / a^-b towards 0 (0 for a = 0).
template <class T>
TAPESTRY_INLINE T integer_power(T a, T b) {
  if (b < 0) {
    return a == 1 ? T(1) : (a == -1 ? ((b & 1) != 0 ? T(-1) : T(1)) : T(0));
  }
  auto factor = wrapping(a);
  auto product = wrapping(T(1));
  for (auto left = wrapping(b); left != 0; left >>= 1U) {
    product *= (left & 1U) != 0 ? factor : 1U;
    factor *= factor;
  }
  return static_cast<T>(product);
}

#define TAPESTRY_BINARY(Name, expression)              \
  struct Name {                                        \
    template <class T>                                 \
    TAPESTRY_INLINE static T f(const T a, const T b) { \
      return static_cast<T>(expression);               \
    }                                                  \
  };

TAPESTRY_BINARY(Add, kIsBool<T> ? T(a != 0 || b != 0) : T(wrapping(a) + wrapping(b)))
TAPESTRY_BINARY(Sub, wrapping(a) - wrapping(b))
TAPESTRY_BINARY(Mul, wrapping(a) * wrapping(b))
TAPESTRY_BINARY(Div, a / b)
TAPESTRY_BINARY(Maximum, a != a ? a : (a >= b ? a : b))
TAPESTRY_BINARY(Minimum, a != a ? a : (a <= b ? a : b))
TAPESTRY_BINARY(ReluBackward, a <= 0 ? T(0) : b)
TAPESTRY_BINARY(GeluTanhBackward, b* gelu_tanh_derivative(a))
TAPESTRY_BINARY(SiluBackward, b* silu_derivative(a))
TAPESTRY_BINARY(TanhBackward, b*(T(1) - a * a))
TAPESTRY_BINARY(SigmoidBackward, b* a*(T(1) - a))

struct RoughGeluBackward {
  TAPESTRY_INLINE static float f(const float a, const float b) {
    return b * rough_gelu_derivative(a);
  }
};
struct GeluBackward {
  using ForBFloat16 = RoughGeluBackward;
  template <class T>
  TAPESTRY_INLINE static T f(const T a, const T b) {
    return b * gelu_derivative(a);
  }
};

struct Pow {
  template <class T>
  TAPESTRY_INLINE static T f(const T a, const T b) {
    if constexpr (std::is_integral_v<T>) {
      return integer_power(a, b);
    } else {
      return pow(a, b);
    }
  }
};

#define TAPESTRY_RELATION(Name, expression)                  \
  struct Name {                                              \
    template <class T>                                       \
    TAPESTRY_INLINE static uint8_t f(const T a, const T b) { \
      return (expression) ? 1 : 0;                           \
    }                                                        \
  };

TAPESTRY_RELATION(LogicalAnd, (a != 0) & (b != 0))
TAPESTRY_RELATION(LogicalOr, (a != 0) | (b != 0))
TAPESTRY_RELATION(LogicalXor, (a != 0) != (b != 0))
TAPESTRY_RELATION(Eq, a == b)
TAPESTRY_RELATION(Ne, a != b)
TAPESTRY_RELATION(Lt, a < b)
TAPESTRY_RELATION(Le, a <= b)
TAPESTRY_RELATION(Gt, a > b)
TAPESTRY_RELATION(Ge, a >= b)

template <class Op>
BinaryRow floating(DType dtype) {
  switch (dtype) {
    case kFloat32:
      return binary_entry<Op, float, float>;
    case kFloat64:
      return binary_entry<Op, double, double>;
    case kBFloat16:
      return binary_entry<Op, BFloat16, BFloat16>;
    case kFloat16:
      return binary_entry<Op, Float16, Float16>;
    default:
      return nullptr;
  }
}

template <class Op>
BinaryRow number(DType dtype) {
  switch (dtype) {
    case kInt32:
      return binary_entry<Op, int32_t, int32_t>;
    case kInt64:
      return binary_entry<Op, int64_t, int64_t>;
    default:
      return floating<Op>(dtype);
  }
}

template <class Op>
BinaryRow any(DType dtype) {
  return dtype == kBool ? binary_entry<Op, uint8_t, uint8_t> : number<Op>(dtype);
}

template <class Op>
BinaryRow relation(DType dtype) {
  switch (dtype) {
    case kBool:
      return binary_entry<Op, uint8_t, uint8_t>;
    case kInt32:
      return binary_entry<Op, int32_t, uint8_t>;
    case kInt64:
      return binary_entry<Op, int64_t, uint8_t>;
    case kFloat32:
      return binary_entry<Op, float, uint8_t>;
    case kFloat64:
      return binary_entry<Op, double, uint8_t>;
    case kBFloat16:
      return binary_entry<Op, BFloat16, uint8_t>;
    case kFloat16:
      return binary_entry<Op, Float16, uint8_t>;
  }
  return nullptr;
}

template <class Op, bool kSwapped>
ScalarRow floating_scalar(DType dtype) {
  switch (dtype) {
    case kFloat32:
      return scalar_entry<Op, float, float, kSwapped>;
    case kFloat64:
      return scalar_entry<Op, double, double, kSwapped>;
    case kBFloat16:
      return scalar_entry<Op, BFloat16, BFloat16, kSwapped>;
    case kFloat16:
      return scalar_entry<Op, Float16, Float16, kSwapped>;
    default:
      return nullptr;
  }
}

template <class Op, bool kSwapped = false>
ScalarRow number_scalar(DType dtype) {
  switch (dtype) {
    case kInt32:
      return scalar_entry<Op, int32_t, int32_t, kSwapped>;
    case kInt64:
      return scalar_entry<Op, int64_t, int64_t, kSwapped>;
    default:
      return floating_scalar<Op, kSwapped>(dtype);
  }
}

/// bool compares as 0 or 1 with any number s.
template <class Op>
void bool_relation(int64_t n, const void* x_, int64_t sx, double s, void* y_, int64_t sy) {
  const auto* x = static_cast<const uint8_t*>(x_);
  auto* y = static_cast<uint8_t*>(y_);
  const uint8_t results[2] = {Op::f(0.0, s), Op::f(1.0, s)};
  for (int64_t i = 0; i < n; ++i) {
    y[i * sy] = x[i * sx] != 0 ? results[1] : results[0];
  }
}

template <class Op>
ScalarRow relation_scalar(DType dtype) {
  switch (dtype) {
    case kBool:
      return bool_relation<Op>;
    case kInt32:
      return scalar_entry<Op, int32_t, uint8_t, false>;
    case kInt64:
      return scalar_entry<Op, int64_t, uint8_t, false>;
    case kFloat32:
      return scalar_entry<Op, float, uint8_t, false>;
    case kFloat64:
      return scalar_entry<Op, double, uint8_t, false>;
    case kBFloat16:
      return scalar_entry<Op, BFloat16, uint8_t, false>;
    case kFloat16:
      return scalar_entry<Op, Float16, uint8_t, false>;
  }
  return nullptr;
}

#define TAPESTRY_POWER(Name, expression)    \
  struct Name {                             \
    template <class T>                      \
    TAPESTRY_INLINE static T f(const T x) { \
      return expression;                    \
    }                                       \
  };

TAPESTRY_POWER(PowerZero, (static_cast<void>(x), T(1)))
TAPESTRY_POWER(PowerOne, x)
TAPESTRY_POWER(PowerTwo, x* x)
TAPESTRY_POWER(PowerThree, x* x* x)
TAPESTRY_POWER(PowerMinusOne, T(1) / x)
TAPESTRY_POWER(PowerHalf, sqrt(x))
TAPESTRY_POWER(PowerMinusHalf, T(1) / sqrt(x))

/// x^s for floating T: the powers that training uses without libm.
template <class T>
void power_entry(int64_t n, const void* x, int64_t sx, double s, void* y, int64_t sy) {
  UnaryRow row = s == 0.0    ? unary_entry<PowerZero, T, T>
                 : s == 1.0  ? unary_entry<PowerOne, T, T>
                 : s == 2.0  ? unary_entry<PowerTwo, T, T>
                 : s == 3.0  ? unary_entry<PowerThree, T, T>
                 : s == -1.0 ? unary_entry<PowerMinusOne, T, T>
                 : s == 0.5  ? unary_entry<PowerHalf, T, T>
                 : s == -0.5 ? unary_entry<PowerMinusHalf, T, T>
                             : nullptr;
  if (row != nullptr) {
    row(n, x, sx, y, sy);
  } else {
    scalar_entry<Pow, T, T, false>(n, x, sx, s, y, sy);
  }
}

ScalarRow power_scalar(DType dtype) {
  switch (dtype) {
    case kInt32:
    case kInt64:
      return number_scalar<Pow>(dtype);
    case kFloat32:
      return power_entry<float>;
    case kFloat64:
      return power_entry<double>;
    case kBFloat16:
      return power_entry<BFloat16>;
    case kFloat16:
      return power_entry<Float16>;
    default:
      return nullptr;
  }
}

}  // namespace

BinaryRow binary_row_of(BinaryOp op, DType dtype) {
  switch (op) {
    case BinaryOp::kAdd:
      return any<Add>(dtype);
    case BinaryOp::kSub:
      return number<Sub>(dtype);
    case BinaryOp::kMul:
      return any<Mul>(dtype);
    case BinaryOp::kDiv:
      return floating<Div>(dtype);
    case BinaryOp::kPow:
      return number<Pow>(dtype);
    case BinaryOp::kMaximum:
      return any<Maximum>(dtype);
    case BinaryOp::kMinimum:
      return any<Minimum>(dtype);
    case BinaryOp::kReluBackward:
      return floating<ReluBackward>(dtype);
    case BinaryOp::kGeluBackward:
      return floating<GeluBackward>(dtype);
    case BinaryOp::kGeluTanhBackward:
      return floating<GeluTanhBackward>(dtype);
    case BinaryOp::kSiluBackward:
      return floating<SiluBackward>(dtype);
    case BinaryOp::kTanhBackward:
      return floating<TanhBackward>(dtype);
    case BinaryOp::kSigmoidBackward:
      return floating<SigmoidBackward>(dtype);
    case BinaryOp::kLogicalAnd:
      return relation<LogicalAnd>(dtype);
    case BinaryOp::kLogicalOr:
      return relation<LogicalOr>(dtype);
    case BinaryOp::kLogicalXor:
      return relation<LogicalXor>(dtype);
    case BinaryOp::kEq:
      return relation<Eq>(dtype);
    case BinaryOp::kNe:
      return relation<Ne>(dtype);
    case BinaryOp::kLt:
      return relation<Lt>(dtype);
    case BinaryOp::kLe:
      return relation<Le>(dtype);
    case BinaryOp::kGt:
      return relation<Gt>(dtype);
    case BinaryOp::kGe:
      return relation<Ge>(dtype);
  }
  return nullptr;
}

ScalarRow scalar_row_of(ScalarOp op, DType dtype) {
  switch (op) {
    case ScalarOp::kAdd:
      return number_scalar<Add>(dtype);
    case ScalarOp::kSub:
      return number_scalar<Sub>(dtype);
    case ScalarOp::kRsub:
      return number_scalar<Sub, true>(dtype);
    case ScalarOp::kMul:
      return number_scalar<Mul>(dtype);
    case ScalarOp::kDiv:
      return floating_scalar<Div, false>(dtype);
    case ScalarOp::kRdiv:
      return floating_scalar<Div, true>(dtype);
    case ScalarOp::kPow:
      return power_scalar(dtype);
    case ScalarOp::kRpow:
      return number_scalar<Pow, true>(dtype);
    case ScalarOp::kClampMin:
      return number_scalar<Maximum>(dtype);
    case ScalarOp::kClampMax:
      return number_scalar<Minimum>(dtype);
    case ScalarOp::kEq:
      return relation_scalar<Eq>(dtype);
    case ScalarOp::kNe:
      return relation_scalar<Ne>(dtype);
    case ScalarOp::kLt:
      return relation_scalar<Lt>(dtype);
    case ScalarOp::kLe:
      return relation_scalar<Le>(dtype);
    case ScalarOp::kGt:
      return relation_scalar<Gt>(dtype);
    case ScalarOp::kGe:
      return relation_scalar<Ge>(dtype);
  }
  return nullptr;
}

}  // namespace tapestry::kernels::TAPESTRY_ISA

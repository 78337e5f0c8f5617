// Element-wise functions of one operand.
#include "autograd/kernels/elementwise.h"
#include "autograd/kernels/isa/elementwise_loops.h"

namespace tapestry::kernels::TAPESTRY_ISA {

UnaryRow unary_row_of(UnaryOp op, DType dtype);

namespace {

#define TAPESTRY_UNARY(Name, expression)    \
  struct Name {                             \
    template <class T>                      \
    TAPESTRY_INLINE static T f(const T x) { \
      return expression;                    \
    }                                       \
  };

TAPESTRY_UNARY(Neg, static_cast<T>(-wrapping(x)))
TAPESTRY_UNARY(Sign, x > 0 ? T(1) : (x < 0 ? T(-1) : (x == 0 ? T(0) : x)))
TAPESTRY_UNARY(Square, static_cast<T>(wrapping(x) * wrapping(x)))
TAPESTRY_UNARY(Relu, x <= 0 ? T(0) : x)
TAPESTRY_UNARY(Identity, x)
TAPESTRY_UNARY(Floor, floor(x))
TAPESTRY_UNARY(Ceil, ceil(x))
TAPESTRY_UNARY(Round, rint(x))
TAPESTRY_UNARY(Exp, exp(x))
TAPESTRY_UNARY(Log, log(x))
TAPESTRY_UNARY(Sqrt, sqrt(x))
TAPESTRY_UNARY(Rsqrt, T(1) / sqrt(x))
TAPESTRY_UNARY(Reciprocal, T(1) / x)
TAPESTRY_UNARY(Sin, sin(x))
TAPESTRY_UNARY(Cos, cos(x))
TAPESTRY_UNARY(Tanh, tanh(x))
TAPESTRY_UNARY(Sigmoid, sigmoid(x))
TAPESTRY_UNARY(Erf, erf(x))

struct RoughGelu {
  TAPESTRY_INLINE static float f(const float x) { return rough_gelu(x); }
};
struct Gelu {
  using ForBFloat16 = RoughGelu;
  template <class T>
  TAPESTRY_INLINE static T f(const T x) {
    return gelu(x);
  }
};

TAPESTRY_UNARY(GeluTanh, gelu_tanh(x))
TAPESTRY_UNARY(Silu, silu(x))

struct Abs {
  template <class T>
  TAPESTRY_INLINE static T f(const T x) {
    if constexpr (std::is_integral_v<T>) {
      return x < 0 ? Neg::f(x) : x;
    } else {
      return fabs(x);
    }
  }
};

#define TAPESTRY_PREDICATE(Name, expression)      \
  struct Name {                                   \
    template <class T>                            \
    TAPESTRY_INLINE static uint8_t f(const T x) { \
      return (expression) ? 1 : 0;                \
    }                                             \
  };

TAPESTRY_PREDICATE(LogicalNot, x == 0)
TAPESTRY_PREDICATE(IsFinite, x - x == 0)
TAPESTRY_PREDICATE(IsNan, x != x)

template <class Op>
UnaryRow floating(DType dtype) {
  switch (dtype) {
    case kFloat32:
      return unary_entry<Op, float, float>;
    case kFloat64:
      return unary_entry<Op, double, double>;
    case kBFloat16:
      return unary_entry<Op, BFloat16, BFloat16>;
    case kFloat16:
      return unary_entry<Op, Float16, Float16>;
    default:
      return nullptr;
  }
}

template <class Op, class IntegerOp = Op>
UnaryRow number(DType dtype) {
  switch (dtype) {
    case kInt32:
      return unary_entry<IntegerOp, int32_t, int32_t>;
    case kInt64:
      return unary_entry<IntegerOp, int64_t, int64_t>;
    default:
      return floating<Op>(dtype);
  }
}

template <class Op>
UnaryRow predicate(DType dtype) {
  switch (dtype) {
    case kBool:
      return unary_entry<Op, uint8_t, uint8_t>;
    case kInt32:
      return unary_entry<Op, int32_t, uint8_t>;
    case kInt64:
      return unary_entry<Op, int64_t, uint8_t>;
    case kFloat32:
      return unary_entry<Op, float, uint8_t>;
    case kFloat64:
      return unary_entry<Op, double, uint8_t>;
    case kBFloat16:
      return unary_entry<Op, BFloat16, uint8_t>;
    case kFloat16:
      return unary_entry<Op, Float16, uint8_t>;
  }
  return nullptr;
}

}  // namespace

UnaryRow unary_row_of(UnaryOp op, DType dtype) {
  switch (op) {
    case UnaryOp::kNeg:
      return number<Neg>(dtype);
    case UnaryOp::kAbs:
      return number<Abs>(dtype);
    case UnaryOp::kSign:
      return number<Sign>(dtype);
    case UnaryOp::kFloor:
      return number<Floor, Identity>(dtype);
    case UnaryOp::kCeil:
      return number<Ceil, Identity>(dtype);
    case UnaryOp::kRound:
      return number<Round, Identity>(dtype);
    case UnaryOp::kExp:
      return floating<Exp>(dtype);
    case UnaryOp::kLog:
      return floating<Log>(dtype);
    case UnaryOp::kSqrt:
      return floating<Sqrt>(dtype);
    case UnaryOp::kRsqrt:
      return floating<Rsqrt>(dtype);
    case UnaryOp::kReciprocal:
      return floating<Reciprocal>(dtype);
    case UnaryOp::kSin:
      return floating<Sin>(dtype);
    case UnaryOp::kCos:
      return floating<Cos>(dtype);
    case UnaryOp::kTanh:
      return floating<Tanh>(dtype);
    case UnaryOp::kSigmoid:
      return floating<Sigmoid>(dtype);
    case UnaryOp::kErf:
      return floating<Erf>(dtype);
    case UnaryOp::kSquare:
      return number<Square>(dtype);
    case UnaryOp::kRelu:
      return number<Relu>(dtype);
    case UnaryOp::kGelu:
      return floating<Gelu>(dtype);
    case UnaryOp::kGeluTanh:
      return floating<GeluTanh>(dtype);
    case UnaryOp::kSilu:
      return floating<Silu>(dtype);
    case UnaryOp::kLogicalNot:
      return predicate<LogicalNot>(dtype);
    case UnaryOp::kIsFinite:
      return predicate<IsFinite>(dtype);
    case UnaryOp::kIsNan:
      return predicate<IsNan>(dtype);
  }
  return nullptr;
}

}  // namespace tapestry::kernels::TAPESTRY_ISA

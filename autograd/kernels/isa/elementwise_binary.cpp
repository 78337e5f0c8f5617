// Element-wise functions of two floating operands, and of one operand and a number, whose loops
// become vector code; elementwise_libm.cpp has the others.
#include "autograd/kernels/elementwise/elementwise.h"
#include "autograd/kernels/isa/elementwise_loops.h"

namespace tapestry::kernels::TAPESTRY_ISA {

BinaryRow binary_row_of(BinaryOp op, DType dtype);
ScalarRow scalar_row_of(ScalarOp op, DType dtype);

namespace {

#define TAPESTRY_BINARY(Name, expression)              \
  struct Name {                                        \
    template <class T>                                 \
    TAPESTRY_INLINE static T f(const T a, const T b) { \
      return expression;                               \
    }                                                  \
  };

TAPESTRY_BINARY(Add, a + b)
TAPESTRY_BINARY(Sub, a - b)
TAPESTRY_BINARY(Mul, a* b)
TAPESTRY_BINARY(Div, a / b)
TAPESTRY_BINARY(ReversedSub, b - a)
TAPESTRY_BINARY(ReversedDiv, b / a)
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

/// What is computed in float32.
template <class Op>
BinaryRow narrow(DType dtype) {
  switch (dtype) {
    case kFloat32:
      return binary_entry<Op, float>;
    case kBFloat16:
      return binary_entry<Op, BFloat16>;
    case kFloat16:
      return binary_entry<Op, Float16>;
    default:
      return nullptr;
  }
}

template <class Op>
BinaryRow floating(DType dtype) {
  return dtype == kFloat64 ? binary_entry<Op, double> : narrow<Op>(dtype);
}

template <class Op, class Reversed = Op>
BinaryRow repeating(DType dtype) {
  switch (dtype) {
    case kFloat32:
      return repeating_entry<Op, Reversed, float>;
    case kBFloat16:
      return repeating_entry<Op, Reversed, BFloat16>;
    default:
      return floating<Op>(dtype);
  }
}

template <class Op>
ScalarRow scalar(DType dtype) {
  switch (dtype) {
    case kFloat32:
      return repeating_scalar_entry<Op, float>;
    case kBFloat16:
      return repeating_scalar_entry<Op, BFloat16>;
    case kFloat16:
      return scalar_entry<Op, Float16>;
    case kFloat64:
      return scalar_entry<Op, double>;
    default:
      return nullptr;
  }
}

}  // namespace

BinaryRow binary_row_of(BinaryOp op, DType dtype) {
  switch (op) {
    case BinaryOp::kAdd:
      return repeating<Add>(dtype);
    case BinaryOp::kSub:
      return repeating<Sub, ReversedSub>(dtype);
    case BinaryOp::kMul:
      return repeating<Mul>(dtype);
    case BinaryOp::kDiv:
      return repeating<Div, ReversedDiv>(dtype);
    case BinaryOp::kMaximum:
      return floating<Maximum>(dtype);
    case BinaryOp::kMinimum:
      return floating<Minimum>(dtype);
    case BinaryOp::kReluBackward:
      return floating<ReluBackward>(dtype);
    case BinaryOp::kGeluBackward:
      return narrow<GeluBackward>(dtype);
    case BinaryOp::kGeluTanhBackward:
      return narrow<GeluTanhBackward>(dtype);
    case BinaryOp::kSiluBackward:
      return narrow<SiluBackward>(dtype);
    case BinaryOp::kTanhBackward:
      return floating<TanhBackward>(dtype);
    case BinaryOp::kSigmoidBackward:
      return floating<SigmoidBackward>(dtype);
    default:
      return nullptr;
  }
}

ScalarRow scalar_row_of(ScalarOp op, DType dtype) {
  switch (op) {
    case ScalarOp::kAdd:
      return scalar<Add>(dtype);
    case ScalarOp::kSub:
      return scalar<Sub>(dtype);
    case ScalarOp::kRsub:
      return scalar<ReversedSub>(dtype);
    case ScalarOp::kMul:
      return scalar<Mul>(dtype);
    case ScalarOp::kDiv:
      return scalar<Div>(dtype);
    case ScalarOp::kRdiv:
      return scalar<ReversedDiv>(dtype);
    case ScalarOp::kClampMin:
      return scalar<Maximum>(dtype);
    case ScalarOp::kClampMax:
      return scalar<Minimum>(dtype);
    default:
      return nullptr;
  }
}

}  // namespace tapestry::kernels::TAPESTRY_ISA

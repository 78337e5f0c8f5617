// Element-wise functions of one floating operand whose loops become vector code;
// elementwise_libm.cpp has the others.
#include "autograd/kernels/elementwise/elementwise.h"
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

TAPESTRY_UNARY(Neg, -x)
TAPESTRY_UNARY(Abs, fabs(x))
TAPESTRY_UNARY(Sign, x > 0 ? T(1) : (x < 0 ? T(-1) : (x == 0 ? T(0) : x)))
TAPESTRY_UNARY(Square, x* x)
TAPESTRY_UNARY(Cube, x* x* x)
TAPESTRY_UNARY(Relu, x <= 0 ? T(0) : x)
TAPESTRY_UNARY(Floor, floor(x))
TAPESTRY_UNARY(Ceil, ceil(x))
TAPESTRY_UNARY(Round, rint(x))
TAPESTRY_UNARY(Exp, exp(x))
TAPESTRY_UNARY(Log, log(x))
TAPESTRY_UNARY(Sqrt, sqrt(x))
TAPESTRY_UNARY(Rsqrt, T(1) / sqrt(x))
TAPESTRY_UNARY(Reciprocal, T(1) / x)
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

}  // namespace

UnaryRow unary_row_of(UnaryOp op, DType dtype) {
  switch (op) {
    case UnaryOp::kNeg:
      return floating_unary<Neg>(dtype);
    case UnaryOp::kAbs:
      return floating_unary<Abs>(dtype);
    case UnaryOp::kSign:
      return floating_unary<Sign>(dtype);
    case UnaryOp::kFloor:
      return floating_unary<Floor>(dtype);
    case UnaryOp::kCeil:
      return floating_unary<Ceil>(dtype);
    case UnaryOp::kRound:
      return floating_unary<Round>(dtype);
    case UnaryOp::kExp:
      return narrow_unary<Exp>(dtype);
    case UnaryOp::kLog:
      return narrow_unary<Log>(dtype);
    case UnaryOp::kSqrt:
      return floating_unary<Sqrt>(dtype);
    case UnaryOp::kRsqrt:
      return floating_unary<Rsqrt>(dtype);
    case UnaryOp::kReciprocal:
      return floating_unary<Reciprocal>(dtype);
    case UnaryOp::kTanh:
      return narrow_unary<Tanh>(dtype);
    case UnaryOp::kSigmoid:
      return narrow_unary<Sigmoid>(dtype);
    case UnaryOp::kErf:
      return narrow_unary<Erf>(dtype);
    case UnaryOp::kSquare:
      return floating_unary<Square>(dtype);
    case UnaryOp::kCube:
      return floating_unary<Cube>(dtype);
    case UnaryOp::kRelu:
      return floating_unary<Relu>(dtype);
    case UnaryOp::kGelu:
      return narrow_unary<Gelu>(dtype);
    case UnaryOp::kGeluTanh:
      return narrow_unary<GeluTanh>(dtype);
    case UnaryOp::kSilu:
      return narrow_unary<Silu>(dtype);
    default:
      return nullptr;
  }
}

}  // namespace tapestry::kernels::TAPESTRY_ISA

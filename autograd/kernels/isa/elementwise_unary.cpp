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

constexpr OpRow<UnaryOp, UnaryRow> kUnaryRows[] = {
    {UnaryOp::kNeg, floating_unary<Neg>},
    {UnaryOp::kAbs, floating_unary<Abs>},
    {UnaryOp::kSign, floating_unary<Sign>},
    {UnaryOp::kFloor, floating_unary<Floor>},
    {UnaryOp::kCeil, floating_unary<Ceil>},
    {UnaryOp::kRound, floating_unary<Round>},
    {UnaryOp::kExp, narrow_unary<Exp>},
    {UnaryOp::kLog, narrow_unary<Log>},
    {UnaryOp::kSqrt, floating_unary<Sqrt>},
    {UnaryOp::kRsqrt, floating_unary<Rsqrt>},
    {UnaryOp::kReciprocal, floating_unary<Reciprocal>},
    {UnaryOp::kTanh, narrow_unary<Tanh>},
    {UnaryOp::kSigmoid, narrow_unary<Sigmoid>},
    {UnaryOp::kErf, narrow_unary<Erf>},
    {UnaryOp::kSquare, floating_unary<Square>},
    {UnaryOp::kCube, floating_unary<Cube>},
    {UnaryOp::kRelu, floating_unary<Relu>},
    {UnaryOp::kGelu, narrow_unary<Gelu>},
    {UnaryOp::kGeluTanh, narrow_unary<GeluTanh>},
    {UnaryOp::kSilu, narrow_unary<Silu>},
};

}  // namespace

UnaryRow unary_row_of(UnaryOp op, DType dtype) { return find_row(kUnaryRows, op, dtype); }

}  // namespace tapestry::kernels::TAPESTRY_ISA

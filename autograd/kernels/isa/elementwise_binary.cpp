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
  return row_of<BinaryRow, float, BFloat16, Float16>(
      dtype, []<class T>(T*) -> BinaryRow { return binary_entry<Op, T>; });
}

template <class Op>
BinaryRow floating(DType dtype) {
  return dtype == kFloat64 ? binary_entry<Op, double> : narrow<Op>(dtype);
}

template <class Op, class Reversed = Op>
BinaryRow repeating(DType dtype) {
  const BinaryRow row = row_of<BinaryRow, float, BFloat16>(
      dtype, []<class T>(T*) -> BinaryRow { return repeating_entry<Op, Reversed, T>; });
  return row != nullptr ? row : floating<Op>(dtype);
}

template <class Op>
ScalarRow scalar(DType dtype) {
  const ScalarRow row = row_of<ScalarRow, float, BFloat16>(
      dtype, []<class T>(T*) -> ScalarRow { return repeating_scalar_entry<Op, T>; });
  return row != nullptr ? row
                        : row_of<ScalarRow, Float16, double>(
                              dtype, []<class T>(T*) -> ScalarRow { return scalar_entry<Op, T>; });
}

constexpr OpRow<BinaryOp, BinaryRow> kBinaryRows[] = {
    {BinaryOp::kAdd, repeating<Add>},
    {BinaryOp::kSub, repeating<Sub, ReversedSub>},
    {BinaryOp::kMul, repeating<Mul>},
    {BinaryOp::kDiv, repeating<Div, ReversedDiv>},
    {BinaryOp::kMaximum, floating<Maximum>},
    {BinaryOp::kMinimum, floating<Minimum>},
    {BinaryOp::kReluBackward, floating<ReluBackward>},
    {BinaryOp::kGeluBackward, narrow<GeluBackward>},
    {BinaryOp::kGeluTanhBackward, narrow<GeluTanhBackward>},
    {BinaryOp::kSiluBackward, narrow<SiluBackward>},
    {BinaryOp::kTanhBackward, floating<TanhBackward>},
    {BinaryOp::kSigmoidBackward, floating<SigmoidBackward>},
};

constexpr OpRow<ScalarOp, ScalarRow> kScalarRows[] = {
    {ScalarOp::kAdd, scalar<Add>},          {ScalarOp::kSub, scalar<Sub>},
    {ScalarOp::kRsub, scalar<ReversedSub>}, {ScalarOp::kMul, scalar<Mul>},
    {ScalarOp::kDiv, scalar<Div>},          {ScalarOp::kRdiv, scalar<ReversedDiv>},
    {ScalarOp::kClampMin, scalar<Maximum>}, {ScalarOp::kClampMax, scalar<Minimum>},
};

}  // namespace

BinaryRow binary_row_of(BinaryOp op, DType dtype) { return find_row(kBinaryRows, op, dtype); }

ScalarRow scalar_row_of(ScalarOp op, DType dtype) { return find_row(kScalarRows, op, dtype); }

}  // namespace tapestry::kernels::TAPESTRY_ISA

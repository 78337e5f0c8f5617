// Functions whose loops call libm for each element, which no instruction set speeds up.
#include "autograd/kernels/elementwise/elementwise_rows.h"

#define TAPESTRY_ISA every_level
#include "autograd/kernels/isa/elementwise_loops.h"

namespace tapestry::kernels {

namespace {

using namespace every_level;  // NOLINT(google-build-using-namespace): the loops of this level

// vector_math.h's functions, by their full names: those of math.h would be found as well.
#define TAPESTRY_LIBM_UNARY(Name, function) \
  struct Name {                             \
    template <class T>                      \
    TAPESTRY_INLINE static T f(const T x) { \
      return every_level::function(x);      \
    }                                       \
  };

TAPESTRY_LIBM_UNARY(Sin, sin)
TAPESTRY_LIBM_UNARY(Cos, cos)
TAPESTRY_LIBM_UNARY(Exp, exp)
TAPESTRY_LIBM_UNARY(Log, log)
TAPESTRY_LIBM_UNARY(Tanh, tanh)
TAPESTRY_LIBM_UNARY(Sigmoid, sigmoid)
TAPESTRY_LIBM_UNARY(Erf, erf)
TAPESTRY_LIBM_UNARY(Gelu, gelu)
TAPESTRY_LIBM_UNARY(GeluTanh, gelu_tanh)
TAPESTRY_LIBM_UNARY(Silu, silu)

#define TAPESTRY_LIBM_BINARY(Name, expression)         \
  struct Name {                                        \
    template <class T>                                 \
    TAPESTRY_INLINE static T f(const T a, const T b) { \
      return expression;                               \
    }                                                  \
  };

TAPESTRY_LIBM_BINARY(Pow, every_level::pow(a, b))
TAPESTRY_LIBM_BINARY(ReversedPow, every_level::pow(b, a))
TAPESTRY_LIBM_BINARY(GeluBackward, b* gelu_derivative(a))
TAPESTRY_LIBM_BINARY(GeluTanhBackward, b* gelu_tanh_derivative(a))
TAPESTRY_LIBM_BINARY(SiluBackward, b* silu_derivative(a))

template <class Op>
UnaryRow only_double(DType dtype) {
  return dtype == kFloat64 ? unary_entry<Op, double> : nullptr;
}

BinaryRow power(DType dtype) {
  return row_of<BinaryRow, float, BFloat16, Float16, double>(
      dtype, []<class T>(T*) -> BinaryRow { return binary_entry<Pow, T>; });
}

/// x^s: the powers that training uses without libm.
template <class T>
void power_entry(int64_t n, const void* x, int64_t sx, double s, void* y, int64_t sy) {
  constexpr DType kType = dtype_of<T>();
  if (s == 0.0) {
    return fill_row(kType, n, 1, y, sy);  // even where x is NaN
  }
  const UnaryRow row = s == 1.0    ? cast_row(kType, kType)
                       : s == 2.0  ? unary_row(UnaryOp::kSquare, kType)
                       : s == 3.0  ? unary_row(UnaryOp::kCube, kType)
                       : s == -1.0 ? unary_row(UnaryOp::kReciprocal, kType)
                       : s == 0.5  ? unary_row(UnaryOp::kSqrt, kType)
                       : s == -0.5 ? unary_row(UnaryOp::kRsqrt, kType)
                                   : nullptr;
  if (row != nullptr) {
    row(n, x, sx, y, sy);
  } else {
    scalar_entry<Pow, T>(n, x, sx, s, y, sy);
  }
}

ScalarRow scalar_power(bool swapped, DType dtype) {
  return row_of<ScalarRow, float, BFloat16, Float16, double>(
      dtype, [swapped]<class T>(T*) -> ScalarRow {
        return swapped ? scalar_entry<ReversedPow, T> : power_entry<T>;
      });
}

constexpr OpRow<UnaryOp, UnaryRow> kUnaryRows[] = {
    {UnaryOp::kSin, floating_unary<Sin>},        {UnaryOp::kCos, floating_unary<Cos>},
    {UnaryOp::kExp, only_double<Exp>},           {UnaryOp::kLog, only_double<Log>},
    {UnaryOp::kTanh, only_double<Tanh>},         {UnaryOp::kSigmoid, only_double<Sigmoid>},
    {UnaryOp::kErf, only_double<Erf>},           {UnaryOp::kGelu, only_double<Gelu>},
    {UnaryOp::kGeluTanh, only_double<GeluTanh>}, {UnaryOp::kSilu, only_double<Silu>},
};

}  // namespace

UnaryRow libm_unary_row(UnaryOp op, DType dtype) { return find_row(kUnaryRows, op, dtype); }

BinaryRow libm_binary_row(BinaryOp op, DType dtype) {
  if (op == BinaryOp::kPow) {
    return power(dtype);
  }
  if (dtype != kFloat64) {
    return nullptr;
  }
  switch (op) {
    case BinaryOp::kGeluBackward:
      return binary_entry<GeluBackward, double>;
    case BinaryOp::kGeluTanhBackward:
      return binary_entry<GeluTanhBackward, double>;
    case BinaryOp::kSiluBackward:
      return binary_entry<SiluBackward, double>;
    default:
      return nullptr;
  }
}

ScalarRow libm_scalar_row(ScalarOp op, DType dtype) {
  return op == ScalarOp::kPow || op == ScalarOp::kRpow
             ? scalar_power(/*swapped=*/op == ScalarOp::kRpow, dtype)
             : nullptr;
}

}  // namespace tapestry::kernels

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
  switch (dtype) {
    case kFloat32:
      return binary_entry<Pow, float>;
    case kBFloat16:
      return binary_entry<Pow, BFloat16>;
    case kFloat16:
      return binary_entry<Pow, Float16>;
    case kFloat64:
      return binary_entry<Pow, double>;
    default:
      return nullptr;
  }
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
  switch (dtype) {
    case kFloat32:
      return swapped ? scalar_entry<ReversedPow, float> : power_entry<float>;
    case kBFloat16:
      return swapped ? scalar_entry<ReversedPow, BFloat16> : power_entry<BFloat16>;
    case kFloat16:
      return swapped ? scalar_entry<ReversedPow, Float16> : power_entry<Float16>;
    case kFloat64:
      return swapped ? scalar_entry<ReversedPow, double> : power_entry<double>;
    default:
      return nullptr;
  }
}

}  // namespace

UnaryRow libm_unary_row(UnaryOp op, DType dtype) {
  switch (op) {
    case UnaryOp::kSin:
      return floating_unary<Sin>(dtype);
    case UnaryOp::kCos:
      return floating_unary<Cos>(dtype);
    case UnaryOp::kExp:
      return only_double<Exp>(dtype);
    case UnaryOp::kLog:
      return only_double<Log>(dtype);
    case UnaryOp::kTanh:
      return only_double<Tanh>(dtype);
    case UnaryOp::kSigmoid:
      return only_double<Sigmoid>(dtype);
    case UnaryOp::kErf:
      return only_double<Erf>(dtype);
    case UnaryOp::kGelu:
      return only_double<Gelu>(dtype);
    case UnaryOp::kGeluTanh:
      return only_double<GeluTanh>(dtype);
    case UnaryOp::kSilu:
      return only_double<Silu>(dtype);
    default:
      return nullptr;
  }
}

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

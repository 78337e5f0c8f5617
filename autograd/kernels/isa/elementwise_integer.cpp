// Arithmetic of integers. Those of 32 and 64 bits have loops; int8 and uint8 pass through
// those of 32, of whose results the low bits are kept.
#include <type_traits>

#include "autograd/kernels/elementwise/elementwise_rows.h"
#include "autograd/kernels/isa/elementwise_loops.h"

namespace tapestry::kernels::TAPESTRY_ISA {

namespace {

#define TAPESTRY_INTEGER_UNARY(Name, expression) \
  struct Name {                                  \
    template <class T>                           \
    TAPESTRY_INLINE static T f(const T x) {      \
      return static_cast<T>(expression);         \
    }                                            \
  };

TAPESTRY_INTEGER_UNARY(Neg, -wrapping(x))
TAPESTRY_INTEGER_UNARY(Abs, x < 0 ? T(-wrapping(x)) : x)
TAPESTRY_INTEGER_UNARY(Sign, (x > 0) - (x < 0))
TAPESTRY_INTEGER_UNARY(Square, wrapping(x) * wrapping(x))
TAPESTRY_INTEGER_UNARY(Cube, wrapping(x) * wrapping(x) * wrapping(x))
TAPESTRY_INTEGER_UNARY(Relu, x <= 0 ? T(0) : x)

#define TAPESTRY_INTEGER_BINARY(Name, expression)      \
  struct Name {                                        \
    template <class T>                                 \
    TAPESTRY_INLINE static T f(const T a, const T b) { \
      return static_cast<T>(expression);               \
    }                                                  \
  };

TAPESTRY_INTEGER_BINARY(Add, wrapping(a) + wrapping(b))
TAPESTRY_INTEGER_BINARY(Sub, wrapping(a) - wrapping(b))
TAPESTRY_INTEGER_BINARY(Mul, wrapping(a) * wrapping(b))
TAPESTRY_INTEGER_BINARY(Maximum, a >= b ? a : b)
TAPESTRY_INTEGER_BINARY(Minimum, a <= b ? a : b)

/// a^b by squaring, wrapping; a negative power truncates 1 / a^-b towards 0 (0 for a = 0).
struct Pow {
  template <class T>
  TAPESTRY_INLINE static T f(const T a, const T b) {
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
};

template <class Op, class T, class C>
void unary(int64_t n, const void* x, int64_t sx, void* y, int64_t sy) {
  unary_blocks<C, C>(n, source<T, C>(x, sx), sink<T, C>(y, sy), unary_loop<Op, C, C>);
}

template <class Op, class T, class C>
void binary(int64_t n, const void* a, int64_t sa, const void* b, int64_t sb, void* y, int64_t sy) {
  binary_blocks<C, C>(n, source<T, C>(a, sa), source<T, C>(b, sb), sink<T, C>(y, sy),
                      binary_loop<Op, C, C>);
}

template <class Op, class T, class C, bool kSwapped>
void scalar(int64_t n, const void* x, int64_t sx, double s, void* y, int64_t sy) {
  // A limit is one of T's numbers; others wrap as sums do.
  constexpr bool kLimits = kSame<Op, Maximum> || kSame<Op, Minimum>;
  const C number = kLimits ? static_cast<C>(number_as<T>(s)) : number_as<C>(s);
  const Source<C> all = source<C>(&number, 0);
  const Source<C> some = source<T, C>(x, sx);
  binary_blocks<C, C>(n, kSwapped ? all : some, kSwapped ? some : all, sink<T, C>(y, sy),
                      binary_loop<Op, C, C>);
}

template <class Op>
UnaryRow unary_of(DType dtype) {
  switch (dtype) {
    case kInt8:
      return unary<Op, int8_t, int32_t>;
    case kUInt8:
      return unary<Op, uint8_t, int32_t>;
    case kInt32:
      return unary<Op, int32_t, int32_t>;
    case kInt64:
      return unary<Op, int64_t, int64_t>;
    default:
      return nullptr;
  }
}

template <class Op>
BinaryRow binary_of(DType dtype) {
  switch (dtype) {
    case kInt8:
      return binary<Op, int8_t, int32_t>;
    case kUInt8:
      return binary<Op, uint8_t, int32_t>;
    case kInt32:
      return binary<Op, int32_t, int32_t>;
    case kInt64:
      return binary<Op, int64_t, int64_t>;
    default:
      return nullptr;
  }
}

template <class Op, bool kSwapped = false>
ScalarRow scalar_of(DType dtype) {
  switch (dtype) {
    case kInt8:
      return scalar<Op, int8_t, int32_t, kSwapped>;
    case kUInt8:
      return scalar<Op, uint8_t, int32_t, kSwapped>;
    case kInt32:
      return scalar<Op, int32_t, int32_t, kSwapped>;
    case kInt64:
      return scalar<Op, int64_t, int64_t, kSwapped>;
    default:
      return nullptr;
  }
}

/// Sums and the larger are `or`, products and the smaller are `and`.
BinaryRow bool_row(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd:
    case BinaryOp::kMaximum:
      return relation_row(BinaryOp::kLogicalOr, kBool);
    case BinaryOp::kMul:
    case BinaryOp::kMinimum:
      return relation_row(BinaryOp::kLogicalAnd, kBool);
    default:
      return nullptr;
  }
}

}  // namespace

UnaryRow integer_unary_row(UnaryOp op, DType dtype) {
  switch (op) {
    case UnaryOp::kNeg:
      return unary_of<Neg>(dtype);
    case UnaryOp::kAbs:
      return unary_of<Abs>(dtype);
    case UnaryOp::kSign:
      return unary_of<Sign>(dtype);
    case UnaryOp::kFloor:
    case UnaryOp::kCeil:
    case UnaryOp::kRound:
      return is_integral(dtype) ? copy_row(size_of(dtype)) : nullptr;
    case UnaryOp::kSquare:
      return unary_of<Square>(dtype);
    case UnaryOp::kCube:
      return unary_of<Cube>(dtype);
    case UnaryOp::kRelu:
      return unary_of<Relu>(dtype);
    default:
      return nullptr;
  }
}

BinaryRow integer_binary_row(BinaryOp op, DType dtype) {
  if (dtype == kBool) {
    return bool_row(op);
  }
  switch (op) {
    case BinaryOp::kAdd:
      return binary_of<Add>(dtype);
    case BinaryOp::kSub:
      return binary_of<Sub>(dtype);
    case BinaryOp::kMul:
      return binary_of<Mul>(dtype);
    case BinaryOp::kPow:
      return binary_of<Pow>(dtype);
    case BinaryOp::kMaximum:
      return binary_of<Maximum>(dtype);
    case BinaryOp::kMinimum:
      return binary_of<Minimum>(dtype);
    default:
      return nullptr;
  }
}

ScalarRow integer_scalar_row(ScalarOp op, DType dtype) {
  switch (op) {
    case ScalarOp::kAdd:
      return scalar_of<Add>(dtype);
    case ScalarOp::kSub:
      return scalar_of<Sub>(dtype);
    case ScalarOp::kRsub:
      return scalar_of<Sub, true>(dtype);
    case ScalarOp::kMul:
      return scalar_of<Mul>(dtype);
    case ScalarOp::kPow:
      return scalar_of<Pow>(dtype);
    case ScalarOp::kRpow:
      return scalar_of<Pow, true>(dtype);
    case ScalarOp::kClampMin:
      return scalar_of<Maximum>(dtype);
    case ScalarOp::kClampMax:
      return scalar_of<Minimum>(dtype);
    default:
      return nullptr;
  }
}

}  // namespace tapestry::kernels::TAPESTRY_ISA

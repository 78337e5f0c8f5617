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

template <class T>
using computed = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;

template <class Row, class F>
Row integer_row_of(DType dtype, const F& entry) {
  return row_of<Row, int8_t, uint8_t, int32_t, int64_t>(dtype, entry);
}

template <class Op>
UnaryRow unary_of(DType dtype) {
  return integer_row_of<UnaryRow>(
      dtype, []<class T>(T*) -> UnaryRow { return unary<Op, T, computed<T>>; });
}

template <class Op>
BinaryRow binary_of(DType dtype) {
  return integer_row_of<BinaryRow>(
      dtype, []<class T>(T*) -> BinaryRow { return binary<Op, T, computed<T>>; });
}

template <class Op, bool kSwapped = false>
ScalarRow scalar_of(DType dtype) {
  return integer_row_of<ScalarRow>(
      dtype, []<class T>(T*) -> ScalarRow { return scalar<Op, T, computed<T>, kSwapped>; });
}

UnaryRow copied(DType dtype) { return is_integral(dtype) ? copy_row(size_of(dtype)) : nullptr; }

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

constexpr OpRow<UnaryOp, UnaryRow> kUnaryRows[] = {
    {UnaryOp::kNeg, unary_of<Neg>},
    {UnaryOp::kAbs, unary_of<Abs>},
    {UnaryOp::kSign, unary_of<Sign>},
    {UnaryOp::kFloor, copied},
    {UnaryOp::kCeil, copied},
    {UnaryOp::kRound, copied},
    {UnaryOp::kSquare, unary_of<Square>},
    {UnaryOp::kCube, unary_of<Cube>},
    {UnaryOp::kRelu, unary_of<Relu>},
};

constexpr OpRow<BinaryOp, BinaryRow> kBinaryRows[] = {
    {BinaryOp::kAdd, binary_of<Add>},         {BinaryOp::kSub, binary_of<Sub>},
    {BinaryOp::kMul, binary_of<Mul>},         {BinaryOp::kPow, binary_of<Pow>},
    {BinaryOp::kMaximum, binary_of<Maximum>}, {BinaryOp::kMinimum, binary_of<Minimum>},
};

constexpr OpRow<ScalarOp, ScalarRow> kScalarRows[] = {
    {ScalarOp::kAdd, scalar_of<Add>},          {ScalarOp::kSub, scalar_of<Sub>},
    {ScalarOp::kRsub, scalar_of<Sub, true>},   {ScalarOp::kMul, scalar_of<Mul>},
    {ScalarOp::kPow, scalar_of<Pow>},          {ScalarOp::kRpow, scalar_of<Pow, true>},
    {ScalarOp::kClampMin, scalar_of<Maximum>}, {ScalarOp::kClampMax, scalar_of<Minimum>},
};

}  // namespace

UnaryRow integer_unary_row(UnaryOp op, DType dtype) { return find_row(kUnaryRows, op, dtype); }

BinaryRow integer_binary_row(BinaryOp op, DType dtype) {
  if (dtype == kBool) {
    return bool_row(op);
  }
  return find_row(kBinaryRows, op, dtype);
}

ScalarRow integer_scalar_row(ScalarOp op, DType dtype) { return find_row(kScalarRows, op, dtype); }

}  // namespace tapestry::kernels::TAPESTRY_ISA

// What gives bool. Elements are compared as float, double, int32_t or int64_t, of which each dtype
// converts to one without loss; logical functions take them as 0 or 1.
#include <type_traits>

#include "autograd/kernels/elementwise/elementwise_rows.h"
#include "autograd/kernels/isa/elementwise_loops.h"
#include "autograd/kernels/isa/elementwise_stored.h"

namespace tapestry::kernels::TAPESTRY_ISA {

namespace {

#define TAPESTRY_RELATION(Name, expression)                  \
  struct Name {                                              \
    template <class T>                                       \
    TAPESTRY_INLINE static uint8_t f(const T a, const T b) { \
      return (expression) ? 1 : 0;                           \
    }                                                        \
  };

TAPESTRY_RELATION(Eq, a == b)
TAPESTRY_RELATION(Ne, a != b)
TAPESTRY_RELATION(Lt, a < b)
TAPESTRY_RELATION(Le, a <= b)
TAPESTRY_RELATION(And, (a & b) != 0)
TAPESTRY_RELATION(Or, (a | b) != 0)
TAPESTRY_RELATION(Xor, a != b)

struct IsFinite {
  template <class T>
  TAPESTRY_INLINE static uint8_t f(const T x) {
    return x - x == 0 ? 1 : 0;
  }
};

/// An input as C. float16 is converted by the loops of the level in use: in software that would be
/// most of the time.
template <class S>
Source<typename S::C> source_of(const void* x, int64_t sx) {
  using C = typename S::C;
  Source<C> out = source<typename S::T, C>(x, sx);
  if constexpr (kSame<typename S::T, Float16>) {
    out.load = [](int64_t n, const void* from, int64_t stride, float* to) {
      cast_row(kFloat16, kFloat32)(n, from, stride, to, 1);
    };
  }
  return out;
}

template <class Op, class S, bool kSwapped>
void relation(
    int64_t n, const void* a, int64_t sa, const void* b, int64_t sb, void* y, int64_t sy) {
  using C = typename S::C;
  const Source<C> left = source_of<S>(a, sa);
  const Source<C> right = source_of<S>(b, sb);
  binary_blocks<C, uint8_t>(n, kSwapped ? right : left, kSwapped ? left : right,
                            sink<uint8_t>(y, sy), binary_loop<Op, C, uint8_t>);
}

template <class Op, class S, bool kSwapped>
void scalar_relation(int64_t n, const void* x, int64_t sx, double s, void* y, int64_t sy) {
  using C = typename S::C;
  const C number = number_as<C>(s);
  const Source<C> all = source<C>(&number, 0);
  const Source<C> some = source_of<S>(x, sx);
  binary_blocks<C, uint8_t>(n, kSwapped ? all : some, kSwapped ? some : all, sink<uint8_t>(y, sy),
                            binary_loop<Op, C, uint8_t>);
}

template <class Op, bool kSwapped = false>
BinaryRow relation_of(DType dtype) {
  return with_stored(dtype, []<class S>(S) -> BinaryRow { return relation<Op, S, kSwapped>; });
}
template <class Op, bool kSwapped = false>
ScalarRow scalar_relation_of(DType dtype) {
  if (dtype == kBool) {  // 0 or 1 with any number
    return scalar_relation<Op, Stored<uint8_t, double>, kSwapped>;
  }
  return with_stored(dtype,
                     []<class S>(S) -> ScalarRow { return scalar_relation<Op, S, kSwapped>; });
}

/// A Load of elements as 0 or 1.
template <class T>
void load_truth(int64_t n, const void* x_, int64_t sx, uint8_t* out) {
  const auto* x = static_cast<const T*>(x_);
  for (int64_t i = 0; i < n; ++i) {
    out[i] = get(x[i * sx]) != 0 ? 1 : 0;
  }
}
template <class T>
Source<uint8_t> truth(const void* x, int64_t sx) {
  return {static_cast<const char*>(x), sx, sizeof(T), &load_truth<T>, /*is_c=*/false};
}

template <class Op, class S>
void logical(int64_t n, const void* a, int64_t sa, const void* b, int64_t sb, void* y, int64_t sy) {
  using T = typename S::T;
  binary_blocks<uint8_t, uint8_t>(n, truth<T>(a, sa), truth<T>(b, sb), sink<uint8_t>(y, sy),
                                  binary_loop<Op, uint8_t, uint8_t>);
}
template <class Op>
BinaryRow logical_of(DType dtype) {
  return with_stored(dtype, []<class S>(S) -> BinaryRow { return logical<Op, S>; });
}

template <class S>
void logical_not(int64_t n, const void* x, int64_t sx, void* y, int64_t sy) {
  scalar_relation<Eq, S, false>(n, x, sx, 0.0, y, sy);
}
/// Only a NaN differs from itself.
template <class S>
void is_nan(int64_t n, const void* x, int64_t sx, void* y, int64_t sy) {
  relation<Ne, S, false>(n, x, sx, x, sx, y, sy);
}
template <class S>
void is_finite(int64_t n, const void* x, int64_t sx, void* y, int64_t sy) {
  using C = typename S::C;
  unary_blocks<C, uint8_t>(n, source_of<S>(x, sx), sink<uint8_t>(y, sy),
                           unary_loop<IsFinite, C, uint8_t>);
}

constexpr OpRow<BinaryOp, BinaryRow> kRelationRows[] = {
    {BinaryOp::kLogicalAnd, logical_of<And>}, {BinaryOp::kLogicalOr, logical_of<Or>},
    {BinaryOp::kLogicalXor, logical_of<Xor>}, {BinaryOp::kEq, relation_of<Eq>},
    {BinaryOp::kNe, relation_of<Ne>},         {BinaryOp::kLt, relation_of<Lt>},
    {BinaryOp::kLe, relation_of<Le>},         {BinaryOp::kGt, relation_of<Lt, true>},
    {BinaryOp::kGe, relation_of<Le, true>},
};

constexpr OpRow<ScalarOp, ScalarRow> kScalarRelationRows[] = {
    {ScalarOp::kEq, scalar_relation_of<Eq>},       {ScalarOp::kNe, scalar_relation_of<Ne>},
    {ScalarOp::kLt, scalar_relation_of<Lt>},       {ScalarOp::kLe, scalar_relation_of<Le>},
    {ScalarOp::kGt, scalar_relation_of<Lt, true>}, {ScalarOp::kGe, scalar_relation_of<Le, true>},
};

}  // namespace

UnaryRow predicate_row(UnaryOp op, DType dtype) {
  switch (op) {
    case UnaryOp::kLogicalNot:
      return with_stored(dtype, []<class S>(S) -> UnaryRow { return logical_not<S>; });
    case UnaryOp::kIsFinite:
      return with_stored(dtype, []<class S>(S) -> UnaryRow { return is_finite<S>; });
    case UnaryOp::kIsNan:
      return with_stored(dtype, []<class S>(S) -> UnaryRow { return is_nan<S>; });
    default:
      return nullptr;
  }
}

BinaryRow relation_row(BinaryOp op, DType dtype) { return find_row(kRelationRows, op, dtype); }

ScalarRow scalar_relation_row(ScalarOp op, DType dtype) {
  return find_row(kScalarRelationRows, op, dtype);
}

}  // namespace tapestry::kernels::TAPESTRY_ISA

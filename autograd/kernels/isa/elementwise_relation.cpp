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

BinaryRow relation_row(BinaryOp op, DType dtype) {
  switch (op) {
    case BinaryOp::kLogicalAnd:
      return logical_of<And>(dtype);
    case BinaryOp::kLogicalOr:
      return logical_of<Or>(dtype);
    case BinaryOp::kLogicalXor:
      return logical_of<Xor>(dtype);
    case BinaryOp::kEq:
      return relation_of<Eq>(dtype);
    case BinaryOp::kNe:
      return relation_of<Ne>(dtype);
    case BinaryOp::kLt:
      return relation_of<Lt>(dtype);
    case BinaryOp::kLe:
      return relation_of<Le>(dtype);
    case BinaryOp::kGt:
      return relation_of<Lt, true>(dtype);
    case BinaryOp::kGe:
      return relation_of<Le, true>(dtype);
    default:
      return nullptr;
  }
}

ScalarRow scalar_relation_row(ScalarOp op, DType dtype) {
  switch (op) {
    case ScalarOp::kEq:
      return scalar_relation_of<Eq>(dtype);
    case ScalarOp::kNe:
      return scalar_relation_of<Ne>(dtype);
    case ScalarOp::kLt:
      return scalar_relation_of<Lt>(dtype);
    case ScalarOp::kLe:
      return scalar_relation_of<Le>(dtype);
    case ScalarOp::kGt:
      return scalar_relation_of<Lt, true>(dtype);
    case ScalarOp::kGe:
      return scalar_relation_of<Le, true>(dtype);
    default:
      return nullptr;
  }
}

}  // namespace tapestry::kernels::TAPESTRY_ISA

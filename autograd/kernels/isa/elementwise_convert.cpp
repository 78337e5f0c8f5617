// Conversion between floating dtypes, and selection.
#include "autograd/kernels/elementwise/elementwise.h"
#include "autograd/kernels/isa/elementwise_loops.h"

namespace tapestry::kernels::TAPESTRY_ISA {

UnaryRow floating_cast_row_of(DType from, DType to);
TernaryRow where_row_of(DType dtype);

namespace {

template <class To>
struct Convert {
  template <class T>
  TAPESTRY_INLINE static To f(const T x) {
    return static_cast<To>(x);
  }
};
struct ToOddFloat {
  TAPESTRY_INLINE static float f(const double x) { return round_to_odd(x); }
};

template <class From, class To>
void cast_entry(int64_t n, const void* x, int64_t sx, void* y, int64_t sy) {
  using C = compute_t<From>;
  using V = compute_t<To>;
  using Op = std::conditional_t<kIsNarrow<To> && kSame<C, double>, ToOddFloat, Convert<V>>;
  if constexpr (kSame<To, C>) {
    if (sy == 1) {
      load<From>(n, x, sx, static_cast<To*>(y));
      return;
    }
  } else if constexpr (kSame<From, V>) {
    if (sx == 1) {
      store<To>(n, static_cast<const From*>(x), y, sy);
      return;
    }
  } else if constexpr (kIsDirect<From> && kIsDirect<To>) {
    if (sx == 1 && sy == 1) {
      unary_loop<Op>(n, static_cast<const From*>(x), static_cast<To*>(y));
      return;
    }
  }
  unary_blocks<C, V>(n, source<From>(x, sx), sink<To>(y, sy), unary_loop<Op, C, V>);
}

template <class From, class To>
constexpr UnaryRow cast_between() {
  if constexpr (kSame<From, To>) {
    return nullptr;
  } else {
    return cast_entry<From, To>;
  }
}

template <class From>
UnaryRow cast_from(DType to) {
  return row_of<UnaryRow, Float16, BFloat16, float, double>(
      to, []<class To>(To*) -> UnaryRow { return cast_between<From, To>(); });
}

template <class Bits>
void where_entry(int64_t n,
                 const void* cond_,
                 int64_t sc,
                 const void* a_,
                 int64_t sa,
                 const void* b_,
                 int64_t sb,
                 void* y_,
                 int64_t sy) {
  const auto* cond = static_cast<const uint8_t*>(cond_);
  const auto* a = static_cast<const Bits*>(a_);
  const auto* b = static_cast<const Bits*>(b_);
  auto* y = static_cast<Bits*>(y_);
  if (n <= 0) {
    return;
  }
  const Bits first = *a;
  const Bits second = *b;
  if (sc == 1 && sy == 1 && sa == 1 && sb == 1) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      const Bits u = a[i];
      const Bits v = b[i];
      y[i] = cond[i] != 0 ? u : v;
    }
  } else if (sc == 1 && sy == 1 && sa == 0 && sb == 1) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      const Bits v = b[i];
      y[i] = cond[i] != 0 ? first : v;
    }
  } else if (sc == 1 && sy == 1 && sa == 1 && sb == 0) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      const Bits u = a[i];
      y[i] = cond[i] != 0 ? u : second;
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      y[i * sy] = cond[i * sc] != 0 ? a[i * sa] : b[i * sb];
    }
  }
}

}  // namespace

UnaryRow floating_cast_row_of(DType from, DType to) {
  return row_of<UnaryRow, Float16, BFloat16, float, double>(
      from, [to]<class From>(From*) -> UnaryRow { return cast_from<From>(to); });
}

TernaryRow where_row_of(DType dtype) {
  switch (size_of(dtype)) {
    case 1:
      return where_entry<uint8_t>;
    case 2:
      return where_entry<uint16_t>;
    case 4:
      return where_entry<uint32_t>;
    default:
      return where_entry<uint64_t>;
  }
}

}  // namespace tapestry::kernels::TAPESTRY_ISA

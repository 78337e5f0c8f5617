// Element-wise conversion, selection and filling.
#include "autograd/kernels/elementwise.h"
#include "autograd/kernels/isa/elementwise_loops.h"

namespace tapestry::kernels::TAPESTRY_ISA {

UnaryRow cast_row_of(DType from, DType to);
TernaryRow where_row_of(DType dtype);
void fill_row_of(DType dtype, int64_t n, double value, void* y, int64_t sy);

namespace {

/// float64 to float32 by rounding to odd: rounding the result again to 16 bits gives what rounding
/// once would.
TAPESTRY_INLINE float round_to_odd(double x) {
  const auto nearest = static_cast<float>(x);
  const double back = nearest;
  const uint32_t u = bits_of(nearest);
  const bool away = __builtin_fabs(back) > __builtin_fabs(x);
  const bool adjust = back != x && back == back && (u & 1U) == 0;
  return float_of(adjust ? (away ? u - 1U : u + 1U) : u);
}

struct ToBool {
  template <class T>
  TAPESTRY_INLINE static uint8_t f(const T x) {
    return x != 0 ? 1 : 0;
  }
};
template <class To>
struct Convert {
  template <class T>
  TAPESTRY_INLINE static To f(const T x) {
    return static_cast<To>(x);
  }
};
struct ToOddFloat {
  template <class T>
  TAPESTRY_INLINE static float f(const T x) {
    return round_to_odd(static_cast<double>(x));
  }
};
template <class T>
struct Same {
  TAPESTRY_INLINE static T f(const T x) { return x; }
};

template <class From, class To>
void cast_entry(int64_t n, const void* x_, int64_t sx, void* y_, int64_t sy) {
  using C = compute_t<From>;
  using Op = std::conditional_t<std::is_same_v<To, uint8_t>, ToBool,
                                std::conditional_t<kIsNarrow<To> && !std::is_same_v<C, float>,
                                                   ToOddFloat, Convert<compute_t<To>>>>;
  const auto* x = static_cast<const From*>(x_);
  auto* y = static_cast<To*>(y_);
  if constexpr (kIsDirect<From> && kIsDirect<To>) {
    if (sx == 1 && sy == 1) {
      unary_loop<Op>(n, x, y);
      return;
    }
  }
  C in[kBlock];
  compute_t<To> out[kBlock];
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    load(m, x + done * sx, sx, in);
    if constexpr (std::is_same_v<C, compute_t<To>> && !std::is_same_v<Op, ToBool>) {
      store(m, in, y + done * sy, sy);
    } else {
      unary_loop<Op>(m, in, out);
      store(m, out, y + done * sy, sy);
    }
  }
}

/// Copies bit patterns.
template <class Bits>
void copy_entry(int64_t n, const void* x_, int64_t sx, void* y_, int64_t sy) {
  const auto* x = static_cast<const Bits*>(x_);
  auto* y = static_cast<Bits*>(y_);
  if (sx == 1 && sy == 1) {
    if (x != y && n > 0) {
      __builtin_memcpy(y, x, static_cast<uint64_t>(n) * sizeof(Bits));
    }
  } else if (sx == 0 && sy == 1) {
    const Bits value = n > 0 ? *x : Bits{};
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      y[i] = value;
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      y[i * sy] = x[i * sx];
    }
  }
}

template <class From>
UnaryRow cast_from(DType to) {
  switch (to) {
    case kBool:
      return cast_entry<From, uint8_t>;
    case kInt32:
      return cast_entry<From, int32_t>;
    case kInt64:
      return cast_entry<From, int64_t>;
    case kFloat16:
      return cast_entry<From, Float16>;
    case kBFloat16:
      return cast_entry<From, BFloat16>;
    case kFloat32:
      return cast_entry<From, float>;
    case kFloat64:
      return cast_entry<From, double>;
  }
  return nullptr;
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

UnaryRow cast_row_of(DType from, DType to) {
  if (from == to) {
    switch (size_of(from)) {
      case 1:
        return copy_entry<uint8_t>;
      case 2:
        return copy_entry<uint16_t>;
      case 4:
        return copy_entry<uint32_t>;
      default:
        return copy_entry<uint64_t>;
    }
  }
  switch (from) {
    case kBool:
      return cast_from<uint8_t>(to);
    case kInt32:
      return cast_from<int32_t>(to);
    case kInt64:
      return cast_from<int64_t>(to);
    case kFloat16:
      return cast_from<Float16>(to);
    case kBFloat16:
      return cast_from<BFloat16>(to);
    case kFloat32:
      return cast_from<float>(to);
    case kFloat64:
      return cast_from<double>(to);
  }
  return nullptr;
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

void fill_row_of(DType dtype, int64_t n, double value, void* y, int64_t sy) {
  // Integers saturate here, where the cast of an element would be unspecified.
  uint64_t element = 0;
  if (dtype == kInt64) {
    element = static_cast<uint64_t>(number_as<int64_t>(value));
  } else if (dtype == kInt32) {
    element = static_cast<uint32_t>(number_as<int32_t>(value));
  } else {
    cast_row_of(kFloat64, dtype)(1, &value, 1, &element, 1);
  }
  cast_row_of(dtype, dtype)(n, &element, 0, y, sy);
}

}  // namespace tapestry::kernels::TAPESTRY_ISA

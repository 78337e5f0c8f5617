// Copies, and conversions from or to what is no floating dtype. An element becomes int32_t,
// int64_t, float or double, is converted to what the other side is stored from, and stored.
#include "autograd/kernels/elementwise/elementwise_rows.h"
#include "autograd/kernels/isa/elementwise_loops.h"
#include "autograd/kernels/isa/elementwise_stored.h"

namespace tapestry::kernels::TAPESTRY_ISA {

namespace {

template <class V>
struct Convert {
  template <class T>
  TAPESTRY_INLINE static V f(const T x) {
    return static_cast<V>(x);
  }
};
struct IsNonzero {
  template <class T>
  TAPESTRY_INLINE static uint8_t f(const T x) {
    return x != 0 ? 1 : 0;
  }
};
/// On the way from an integer to a 16-bit dtype.
struct ToOddFloat {
  template <class T>
  TAPESTRY_INLINE static float f(const T x) {
    return round_to_odd(static_cast<double>(x));
  }
};

template <class From, class To>
void convert(int64_t n, const void* x, int64_t sx, void* y, int64_t sy) {
  using C = typename From::C;
  const Source<C> in = source<typename From::T, C>(x, sx);
  if constexpr (kSame<To, Bool>) {
    unary_blocks<C, uint8_t>(n, in, sink<uint8_t>(y, sy), unary_loop<IsNonzero, C, uint8_t>);
  } else {
    using T = typename To::T;
    using V = typename To::V;
    constexpr bool kOdd = kIsNarrow<T> && std::is_integral_v<C>;
    using Op = std::conditional_t<kOdd, ToOddFloat, Convert<V>>;
    unary_blocks<C, V>(n, in, sink<T, V>(y, sy), unary_loop<Op, C, V>);
  }
}

template <class Bits>
void copy(int64_t n, const void* x_, int64_t sx, void* y_, int64_t sy) {
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

}  // namespace

UnaryRow convert_row(DType from, DType to) {
  return with_stored(from, [&]<class From>(From) {
    return with_stored(to, []<class To>(To) -> UnaryRow {
      constexpr bool kBothFloating =
          std::is_floating_point_v<typename From::C> && std::is_floating_point_v<typename To::C>;
      if constexpr (kBothFloating || kSame<From, To>) {
        return nullptr;
      } else {
        return convert<From, To>;
      }
    });
  });
}

UnaryRow copy_row(int64_t item_size) {
  switch (item_size) {
    case 1:
      return copy<uint8_t>;
    case 2:
      return copy<uint16_t>;
    case 4:
      return copy<uint32_t>;
    default:
      return copy<uint64_t>;
  }
}

void fill_row(DType dtype, int64_t n, double value, void* y, int64_t sy) {
  // Integers saturate here, where the cast of an element would be unspecified.
  uint64_t element = 0;
  if (dtype == kInt8) {
    element = static_cast<uint8_t>(number_as<int8_t>(value));
  } else if (dtype == kUInt8) {
    element = number_as<uint8_t>(value);
  } else if (dtype == kInt64) {
    element = static_cast<uint64_t>(number_as<int64_t>(value));
  } else if (dtype == kInt32) {
    element = static_cast<uint32_t>(number_as<int32_t>(value));
  } else {
    cast_row(kFloat64, dtype)(1, &value, 1, &element, 1);
  }
  cast_row(dtype, dtype)(n, &element, 0, y, sy);
}

}  // namespace tapestry::kernels::TAPESTRY_ISA

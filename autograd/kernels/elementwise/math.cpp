#include "autograd/kernels/elementwise/math.h"

#include <cmath>
#include <type_traits>

#include "autograd/kernels/machine/dispatch.h"

namespace tapestry::kernels {

namespace {

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

// What T is computed in.
template <class T>
using Wide = std::conditional_t<kIsHalf<T>, float, std::conditional_t<sizeof(T) == 1, int32_t, T>>;

struct Log1p {
  template <class T>
  static T of(T x) {
    return std::log1p(x);
  }
};
struct Expm1 {
  template <class T>
  static T of(T x) {
    return std::expm1(x);
  }
};

struct FloorDivide {
  template <class T>
  static T of(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using Unsigned = std::make_unsigned_t<T>;
      if (b == -1) {
        return static_cast<T>(Unsigned{0} - static_cast<Unsigned>(a));
      }
      const T quotient = a / b;
      return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
    } else {
      if (b == 0) {
        return a / b;
      }
      // From the exact remainder: a / b may round up to the next integer.
      const T rest = std::fmod(a, b);
      T quotient = (a - rest) / b;
      if (rest != 0 && (rest < 0) != (b < 0)) {
        quotient -= 1;
      }
      if (quotient == 0) {
        return std::copysign(T{0}, a / b);
      }
      const T whole = std::floor(quotient);
      return quotient - whole > T(0.5) ? whole + 1 : whole;
    }
  }
};
struct Remainder {
  template <class T>
  static T of(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      if (b == -1) {
        return 0;
      }
      const T rest = a % b;
      return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
    } else {
      const T rest = std::fmod(a, b);
      return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
    }
  }
};

template <class T, class F>
void unary(int64_t n, const void* x, int64_t sx, void* y, int64_t sy) {
  for (int64_t i = 0; i < n; ++i) {
    const auto value = static_cast<Wide<T>>(static_cast<const T*>(x)[i * sx]);
    static_cast<T*>(y)[i * sy] = static_cast<T>(F::of(value));
  }
}

template <class T, class F>
void binary(int64_t n, const void* a, int64_t sa, const void* b, int64_t sb, void* y, int64_t sy) {
  for (int64_t i = 0; i < n; ++i) {
    const auto left = static_cast<Wide<T>>(static_cast<const T*>(a)[i * sa]);
    const auto right = static_cast<Wide<T>>(static_cast<const T*>(b)[i * sb]);
    static_cast<T*>(y)[i * sy] = static_cast<T>(F::of(left, right));
  }
}

template <class F>
UnaryRow unary_of(DType dtype) {
  return dispatch_all(dtype, []<class T>() -> UnaryRow {
    if constexpr (is_floating(dtype_of<T>())) {
      return &unary<T, F>;
    } else {
      return nullptr;
    }
  });
}

template <class F>
BinaryRow binary_of(DType dtype) {
  return dispatch_all(dtype, []<class T>() -> BinaryRow {
    if constexpr (std::is_same_v<T, bool>) {
      return nullptr;
    } else {
      return &binary<T, F>;
    }
  });
}

}  // namespace

UnaryRow log1p_row(DType dtype) { return unary_of<Log1p>(dtype); }
UnaryRow expm1_row(DType dtype) { return unary_of<Expm1>(dtype); }
BinaryRow floor_divide_row(DType dtype) { return binary_of<FloorDivide>(dtype); }
BinaryRow remainder_row(DType dtype) { return binary_of<Remainder>(dtype); }

}  // namespace tapestry::kernels

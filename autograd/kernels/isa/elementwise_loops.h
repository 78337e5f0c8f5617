// How element-wise rows are put together. One contiguous loop per operation and element type does
// the work; bfloat16 is converted inside it. Strides and float16 go through the loop of float in
// chunks on the stack.
//
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#include <cstdint>
#include <type_traits>

#include "autograd/kernels/dtype.h"
#include "autograd/kernels/isa/row_io.h"

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

/// Integers wrap around on overflow; they are added and multiplied as unsigned numbers.
template <class T>
TAPESTRY_INLINE auto wrapping(T x) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<std::make_unsigned_t<T>>(x);
  } else {
    return x;
  }
}

/// out[0..n) = x[0], x[sx], ...
template <class T>
[[gnu::noinline]] void load(int64_t n, const T* x, int64_t sx, compute_t<T>* out) {
  if (sx == 1) {
    load_row(n, x, out);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    out[i] = static_cast<compute_t<T>>(x[i * sx]);
  }
}

/// y[0], y[sy], ... = in[0..n)
template <class T>
[[gnu::noinline]] void store(int64_t n, const compute_t<T>* in, T* y, int64_t sy) {
  if (sy == 1) {
    store_row(n, in, y);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    y[i * sy] = static_cast<T>(in[i]);
  }
}

/// y = f(x), contiguous.
template <class Op, class T, class Out>
[[gnu::noinline]] void unary_loop(int64_t n, const T* x, Out* y) {
  TAPESTRY_VECTOR_LOOP
  for (int64_t i = 0; i < n; ++i) {
    put(Op::f(get(x[i])), y[i]);
  }
}

/// A UnaryRow: elements stored as T and Out.
template <class Op, class T, class Out>
void unary_entry(int64_t n, const void* x_, int64_t sx, void* y_, int64_t sy) {
  using C = compute_t<T>;
  using F = function_for<Op, T>;
  const auto* x = static_cast<const T*>(x_);
  auto* y = static_cast<Out*>(y_);
  if constexpr (kIsDirect<T>) {
    if (sx == 1 && sy == 1) {
      unary_loop<F>(n, x, y);
      return;
    }
  }
  C in[kBlock];
  compute_t<Out> out[kBlock];
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    load(m, x + done * sx, sx, in);
    unary_loop<F>(m, in, out);
    store(m, out, y + done * sy, sy);
  }
}

enum class Repeat { kNone, kFirst, kSecond };  // which operand is one element for the whole row

/// y = f(a, b), contiguous.
template <class Op, Repeat kRepeat, class T, class Out>
[[gnu::noinline]] void binary_loop(int64_t n, const T* a, const T* b, Out* y) {
  if constexpr (kRepeat == Repeat::kFirst) {
    const auto first = get(*a);
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      put(Op::f(first, get(b[i])), y[i]);
    }
  } else if constexpr (kRepeat == Repeat::kSecond) {
    const auto second = get(*b);
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      put(Op::f(get(a[i]), second), y[i]);
    }
  } else {
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < n; ++i) {
      put(Op::f(get(a[i]), get(b[i])), y[i]);
    }
  }
}

/// A BinaryRow: inputs stored as T, output as Out.
template <class Op, class T, class Out>
void binary_entry(
    int64_t n, const void* a_, int64_t sa, const void* b_, int64_t sb, void* y_, int64_t sy) {
  using C = compute_t<T>;
  using F = function_for<Op, T>;
  const auto* a = static_cast<const T*>(a_);
  const auto* b = static_cast<const T*>(b_);
  auto* y = static_cast<Out*>(y_);
  if constexpr (kIsDirect<T>) {
    if (sy == 1 && sa == 1 && sb == 1) {
      return binary_loop<F, Repeat::kNone>(n, a, b, y);
    }
    if (sy == 1 && sa == 0 && sb == 1) {
      return binary_loop<F, Repeat::kFirst>(n, a, b, y);
    }
    if (sy == 1 && sa == 1 && sb == 0) {
      return binary_loop<F, Repeat::kSecond>(n, a, b, y);
    }
  }
  C first[kBlock];
  C second[kBlock];
  compute_t<Out> out[kBlock];
  if (n > 0) {
    load(1, a, 1, first);
    load(1, b, 1, second);
  }
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    if (sa != 0 || sb == 0) {
      load(m, a + done * sa, sa, first);
    }
    if (sb != 0) {
      load(m, b + done * sb, sb, second);
    }
    if (sb == 0) {
      binary_loop<F, Repeat::kSecond>(m, first, second, out);
    } else if (sa == 0) {
      binary_loop<F, Repeat::kFirst>(m, first, second, out);
    } else {
      binary_loop<F, Repeat::kNone>(m, first, second, out);
    }
    store(m, out, y + done * sy, sy);
  }
}

template <class Op, class T, class Out>
void scalar_loop(bool swapped, int64_t n, const T* x, T s, Out* y) {
  if (swapped) {
    binary_loop<Op, Repeat::kFirst>(n, &s, x, y);
  } else {
    binary_loop<Op, Repeat::kSecond>(n, x, &s, y);
  }
}

/// s as an integer, saturated.
template <class C>
TAPESTRY_INLINE C number_as(double s) {
  if constexpr (std::is_integral_v<C>) {
    constexpr double kLimit = sizeof(C) == 8 ? 0x1p63 : 0x1p31;
    constexpr C kMin = static_cast<C>(C(1) << (sizeof(C) * 8 - 1));
    return s >= kLimit ? static_cast<C>(~kMin) : (s > -kLimit ? static_cast<C>(s) : kMin);
  } else {
    return static_cast<C>(s);
  }
}

/// A ScalarRow by the binary operation of x and s (s and x if swapped).
template <class Op, class T, class Out, bool kSwapped>
void scalar_entry(int64_t n, const void* x_, int64_t sx, double s, void* y_, int64_t sy) {
  using C = compute_t<T>;
  const auto* x = static_cast<const T*>(x_);
  auto* y = static_cast<Out*>(y_);
  const C number = number_as<C>(s);
  if constexpr (!kIsNarrow<T>) {
    if (sx == 1 && sy == 1) {
      scalar_loop<Op>(kSwapped, n, x, number, y);
      return;
    }
  }
  C in[kBlock];
  compute_t<Out> out[kBlock];
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    load(m, x + done * sx, sx, in);
    scalar_loop<Op>(kSwapped, m, in, number, out);
    store(m, out, y + done * sy, sy);
  }
}

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA

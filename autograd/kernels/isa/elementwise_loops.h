// How element-wise rows are put together. One contiguous loop per operation and type that it
// computes in does the work; a row of other strides, of float16 or of small integers passes through
// it in blocks on the stack. The code around a loop is written once per type, not per operation.
//
// For sources in kernels/isa/, and for those next to it whose loops are the same at every level:
// these define TAPESTRY_ISA themselves. Everything here has internal linkage, per level.
#pragma once

#include <cstdint>
#include <type_traits>

#include "autograd/kernels/elementwise/elementwise.h"
#include "autograd/kernels/isa/row_io.h"
#include "autograd/kernels/machine/dtype.h"

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
template <class C>
using Load = void (*)(int64_t n, const void* x, int64_t sx, C* out);
/// y[0], y[sy], ... = in[0..n)
template <class C>
using Store = void (*)(int64_t n, const C* in, void* y, int64_t sy);

template <class T, class C = compute_t<T>>
[[gnu::noinline]] void load(int64_t n, const void* x_, int64_t sx, C* out) {
  const auto* x = static_cast<const T*>(x_);
  if (sx == 1) {
    load_row(n, x, out);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    out[i] = static_cast<C>(get(x[i * sx]));
  }
}

template <class T, class C = compute_t<T>>
[[gnu::noinline]] void store(int64_t n, const C* in, void* y_, int64_t sy) {
  auto* y = static_cast<T*>(y_);
  if (sy == 1) {
    store_row(n, in, y);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    y[i * sy] = static_cast<T>(in[i]);
  }
}

/// An input that is computed in C.
template <class C>
struct Source {
  const char* data;
  int64_t stride;  // in elements
  int64_t item;    // bytes of an element
  Load<C> load;
  bool is_c;  // elements are stored as C

  bool in_place() const { return is_c && stride == 1; }
};
template <class T, class C = compute_t<T>>
TAPESTRY_INLINE Source<C> source(const void* x, int64_t stride) {
  return {static_cast<const char*>(x), stride, sizeof(T), &load<T, C>, kSame<T, C>};
}

/// What a loop leaves in C, and where it goes.
template <class C>
struct Sink {
  char* data;
  int64_t stride;
  int64_t item;
  Store<C> store;
  bool is_c;

  bool in_place() const { return is_c && stride == 1; }
};
template <class T, class C = compute_t<T>>
TAPESTRY_INLINE Sink<C> sink(void* y, int64_t stride) {
  return {static_cast<char*>(y), stride, sizeof(T), &store<T, C>, kSame<T, C>};
}

/// Elements [done, done + n) of x: where they lie, or in `block`. A repeated element is in the
/// block once begin_blocks has put it there.
template <class C>
TAPESTRY_INLINE const C* next_block(const Source<C>& x, int64_t done, int64_t n, C* block) {
  if (x.in_place()) {
    return reinterpret_cast<const C*>(x.data) + done;
  }
  if (x.stride != 0) {
    x.load(n, x.data + done * x.stride * x.item, x.stride, block);
  }
  return block;
}
template <class C>
TAPESTRY_INLINE void begin_blocks(const Source<C>& x, int64_t n, C* block) {
  if (x.stride == 0 && n > 0) {
    x.load(1, x.data, 1, block);
    const C element = *block;
    const int64_t m = block_size(n);
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      block[i] = element;
    }
  }
}
template <class C>
TAPESTRY_INLINE C* next_output(const Sink<C>& y, int64_t done, C* block) {
  return y.in_place() ? reinterpret_cast<C*>(y.data) + done : block;
}
template <class C>
TAPESTRY_INLINE void end_output(const Sink<C>& y, int64_t done, int64_t n, const C* block) {
  if (!y.in_place()) {
    y.store(n, block, y.data + done * y.stride * y.item, y.stride);
  }
}

template <class In, class Out>
using UnaryLoop = void (*)(int64_t n, const In* x, Out* y);
template <class In, class Out>
using BinaryLoop = void (*)(int64_t n, const In* a, const In* b, Out* y);

template <class In, class Out>
[[gnu::noinline]] void unary_blocks(int64_t n,
                                    const Source<In>& x,
                                    const Sink<Out>& y,
                                    UnaryLoop<In, Out> loop) {
  if (x.in_place() && y.in_place()) {
    return loop(n, reinterpret_cast<const In*>(x.data), reinterpret_cast<Out*>(y.data));
  }
  In in[kBlock];
  Out out[kBlock];
  begin_blocks(x, n, in);
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    loop(m, next_block(x, done, m, in), next_output(y, done, out));
    end_output(y, done, m, out);
  }
}

template <class In, class Out>
[[gnu::noinline]] void binary_blocks(int64_t n,
                                     const Source<In>& a,
                                     const Source<In>& b,
                                     const Sink<Out>& y,
                                     BinaryLoop<In, Out> loop) {
  if (a.in_place() && b.in_place() && y.in_place()) {
    return loop(n, reinterpret_cast<const In*>(a.data), reinterpret_cast<const In*>(b.data),
                reinterpret_cast<Out*>(y.data));
  }
  In first[kBlock];
  In second[kBlock];
  Out out[kBlock];
  begin_blocks(a, n, first);
  begin_blocks(b, n, second);
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    const In* left = next_block(a, done, m, first);
    const In* right = next_block(b, done, m, second);
    loop(m, left, right, next_output(y, done, out));
    end_output(y, done, m, out);
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

/// A UnaryRow: elements stored as T, computed in compute_t<T> and stored as T.
template <class Op, class T>
void unary_entry(int64_t n, const void* x, int64_t sx, void* y, int64_t sy) {
  using C = compute_t<T>;
  if constexpr (kIsDirect<T>) {
    if (sx == 1 && sy == 1) {
      unary_loop<function_for<Op, T>>(n, static_cast<const T*>(x), static_cast<T*>(y));
      return;
    }
  }
  // bfloat16 keeps its function here too: results do not depend on strides.
  unary_blocks<C, C>(n, source<T>(x, sx), sink<T>(y, sy), unary_loop<function_for<Op, T>, C, C>);
}

/// What `entry` gives for a T* if dtype is that of T, one of Ts; nullptr for other dtypes.
template <class Row, class... Ts, class F>
Row row_of(DType dtype, const F& entry) {
  constexpr DType kTypes[] = {dtype_of<Ts>()...};
  const Row rows[] = {entry(static_cast<Ts*>(nullptr))...};
  for (size_t i = 0; i < sizeof...(Ts); ++i) {
    if (kTypes[i] == dtype) {
      return rows[i];
    }
  }
  return nullptr;
}

/// An operation, and what gives its row for a dtype.
template <class Op, class Row>
struct OpRow {
  Op op;
  Row (*of)(DType dtype);
};

/// The row of the operation; nullptr if the table does not have it.
template <class Op, class Row, size_t kCount>
Row find_row(const OpRow<Op, Row> (&table)[kCount], Op op, DType dtype) {
  for (const OpRow<Op, Row>& entry : table) {
    if (entry.op == op) {
      return entry.of(dtype);
    }
  }
  return nullptr;
}

/// unary_entry of the floating dtypes that are computed in float32, and of all; else nullptr.
template <class Op>
UnaryRow narrow_unary(DType dtype) {
  return row_of<UnaryRow, float, BFloat16, Float16>(
      dtype, []<class T>(T*) -> UnaryRow { return unary_entry<Op, T>; });
}

template <class Op>
UnaryRow floating_unary(DType dtype) {
  return dtype == kFloat64 ? unary_entry<Op, double> : narrow_unary<Op>(dtype);
}

/// y = f(a, b), contiguous.
template <class Op, class T, class Out>
[[gnu::noinline]] void binary_loop(int64_t n, const T* a, const T* b, Out* y) {
  TAPESTRY_VECTOR_LOOP
  for (int64_t i = 0; i < n; ++i) {
    put(Op::f(get(a[i]), get(b[i])), y[i]);
  }
}

/// y = f(a, b) with one b for all, contiguous.
template <class Op, class T>
[[gnu::noinline]] void repeated_loop(int64_t n, const T* a, compute_t<T> b, T* y) {
  TAPESTRY_VECTOR_LOOP
  for (int64_t i = 0; i < n; ++i) {
    put(Op::f(get(a[i]), b), y[i]);
  }
}

/// A BinaryRow: elements stored as T, computed in compute_t<T> and stored as T.
template <class Op, class T>
void binary_entry(
    int64_t n, const void* a, int64_t sa, const void* b, int64_t sb, void* y, int64_t sy) {
  using C = compute_t<T>;
  using F = function_for<Op, T>;
  if constexpr (kIsDirect<T>) {
    if (sa == 1 && sb == 1 && sy == 1) {
      binary_loop<F>(n, static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(y));
      return;
    }
  }
  binary_blocks<C, C>(n, source<T>(a, sa), source<T>(b, sb), sink<T>(y, sy), binary_loop<F, C, C>);
}

/// The same for an operation that is often done with one number for the whole row; Reversed is it
/// with its operands exchanged.
template <class Op, class Reversed, class T>
void repeating_entry(
    int64_t n, const void* a, int64_t sa, const void* b, int64_t sb, void* y, int64_t sy) {
  const bool repeats = n > 0 && sa + sb == 1 && (sa == 0 || sb == 0) && sy == 1;
  if (!repeats) {
    binary_entry<Op, T>(n, a, sa, b, sb, y, sy);
  } else if (sb == 0) {
    repeated_loop<Op>(n, static_cast<const T*>(a), get(*static_cast<const T*>(b)),
                      static_cast<T*>(y));
  } else {
    repeated_loop<Reversed>(n, static_cast<const T*>(b), get(*static_cast<const T*>(a)),
                            static_cast<T*>(y));
  }
}

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

/// s as an integer, saturated.
template <class C>
TAPESTRY_INLINE C number_as(double s) {
  if constexpr (std::is_integral_v<C>) {
    constexpr int kBits = static_cast<int>(sizeof(C)) * 8 - (std::is_signed_v<C> ? 1 : 0);
    constexpr double kAbove = 2.0 * static_cast<double>(uint64_t{1} << (kBits - 1));
    constexpr auto kMax = static_cast<C>((uint64_t{1} << kBits) - 1);
    constexpr C kMin = std::is_signed_v<C> ? static_cast<C>(-kMax - 1) : C(0);
    return s >= kAbove ? kMax : (s > static_cast<double>(kMin) ? static_cast<C>(s) : kMin);
  } else {
    return static_cast<C>(s);
  }
}

/// A ScalarRow by the binary operation of x and s.
template <class Op, class T>
void scalar_entry(int64_t n, const void* x, int64_t sx, double s, void* y, int64_t sy) {
  using C = compute_t<T>;
  const C number = number_as<C>(s);
  binary_blocks<C, C>(n, source<T>(x, sx), source<C>(&number, 0), sink<T>(y, sy),
                      binary_loop<Op, C, C>);
}

/// The same for an operation that has a repeated_loop.
template <class Op, class T>
void repeating_scalar_entry(int64_t n, const void* x, int64_t sx, double s, void* y, int64_t sy) {
  if (sx == 1 && sy == 1) {
    repeated_loop<Op>(n, static_cast<const T*>(x), static_cast<compute_t<T>>(s),
                      static_cast<T*>(y));
  } else {
    scalar_entry<Op, T>(n, x, sx, s, y, sy);
  }
}

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA

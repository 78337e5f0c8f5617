// Vectors of one float or double, as wide as the level has, and what the blocked kernels do with
// them.
//
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#include <cstdint>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

#define TAPESTRY_VECTOR __attribute__((vector_size(kVectorBytes)))
// NOLINTBEGIN(modernize-use-using): an alias cannot carry the attribute
typedef float FloatVector TAPESTRY_VECTOR;
typedef double DoubleVector TAPESTRY_VECTOR;
typedef uint32_t UInt32Vector TAPESTRY_VECTOR;
typedef uint32_t Uint32Vector TAPESTRY_VECTOR;
// NOLINTEND(modernize-use-using)
#undef TAPESTRY_VECTOR

template <class C>
struct VectorOf;
template <>
struct VectorOf<float> {
  using type = FloatVector;
};
template <>
struct VectorOf<double> {
  using type = DoubleVector;
};
template <>
struct VectorOf<uint32_t> {
  using type = Uint32Vector;
};
template <class C>
using vector_t = typename VectorOf<C>::type;

template <class C>
inline constexpr int64_t kLanes = kVectorBytes / static_cast<int64_t>(sizeof(C));

template <class C>
[[gnu::always_inline]] inline vector_t<C> load(const C* x) {
  vector_t<C> v;
  __builtin_memcpy(&v, x, sizeof(v));
  return v;
}
template <class C>
[[gnu::always_inline]] inline void store(C* y, vector_t<C> v) {
  __builtin_memcpy(y, &v, sizeof(v));
}
template <class C>
[[gnu::always_inline]] inline vector_t<C> broadcast(C x) {
  // Minus 0, which changes no value: plus 0 does (that of -0), and would have to be computed.
  return x - vector_t<C>{};
}

/// a b + c, fused where the level can.
[[gnu::always_inline]] inline FloatVector multiply_add(FloatVector a,
                                                       FloatVector b,
                                                       FloatVector c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}
[[gnu::always_inline]] inline DoubleVector multiply_add(DoubleVector a,
                                                        DoubleVector b,
                                                        DoubleVector c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_pd(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_pd(a, b, c);
#else
  return a * b + c;
#endif
}

#if defined(__AVX512F__)
// GCC 12 takes the unused operand of some unmasked intrinsics for a use of uninitialised memory
// (GCC bug 105593); with a full mask the instruction is the same.
inline constexpr __mmask16 kAllLanes = 0xffff;
#endif

/// b where one of the two is NaN.
[[gnu::always_inline]] inline FloatVector larger_of(FloatVector a, FloatVector b) {
#if defined(__AVX512F__)
  return _mm512_maskz_max_ps(kAllLanes, a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}
[[gnu::always_inline]] inline DoubleVector larger_of(DoubleVector a, DoubleVector b) {
  return a > b ? a : b;
}

/// 2^x = 2^n p(r) with n = x rounded, r = x - n (exact) and p(r) = 1 + r q(r); q is the minimax
/// polynomial of the relative error (Remez exchange; 2.6e-9). Total error below 1.1 units in the
/// last place (1.4 where products are not fused). For x <= 127, where results below 2^-126 are 0,
/// or NaN, which stays NaN.
[[gnu::always_inline]] inline FloatVector exp2(FloatVector x) {
#if defined(__AVX512F__)
  const FloatVector n =
      _mm512_maskz_roundscale_ps(kAllLanes, x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  constexpr float kRounder = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const FloatVector shifted = x + kRounder;
  const FloatVector n = shifted - kRounder;
#endif
  const FloatVector r = x - n;
  FloatVector p = broadcast(1.559467782e-04F);
  p = multiply_add(p, r, broadcast(1.340664341e-03F));
  p = multiply_add(p, r, broadcast(9.617692791e-03F));
  p = multiply_add(p, r, broadcast(5.550310388e-02F));
  p = multiply_add(p, r, broadcast(2.402265221e-01F));
  p = multiply_add(p, r, broadcast(6.931472421e-01F));
  p = multiply_add(p, r, broadcast(1.0F));
#if defined(__AVX512F__)
  const __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0F), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(normal, p, n);
#else
  // Unsigned: where x is far below -126, and the result not used, the difference wraps.
  const UInt32Vector exponent =
      reinterpret_cast<UInt32Vector>(shifted) - __builtin_bit_cast(uint32_t, kRounder) + 127U;
  const FloatVector power = reinterpret_cast<FloatVector>(exponent << 23U);
  return x < -126.0F ? FloatVector{} : p * power;
#endif
}
[[gnu::always_inline]] inline DoubleVector exp2(DoubleVector x) {
  for (int64_t i = 0; i < kLanes<double>; ++i) {
    x[i] = __builtin_exp2(x[i]);
  }
  return x;
}

/// The lanes of a and b in turn: of their first halves, or of their second.
template <class V, int... kLane>
[[gnu::always_inline]] inline V interleave_first(V a,
                                                 V b,
                                                 std::integer_sequence<int, kLane...> /*lanes*/) {
  return __builtin_shufflevector(a, b, (kLane / 2 + kLane % 2 * int{sizeof...(kLane)})...);
}
template <class V, int... kLane>
[[gnu::always_inline]] inline V interleave_second(V a,
                                                  V b,
                                                  std::integer_sequence<int, kLane...> /*lanes*/) {
  constexpr int kCount = sizeof...(kLane);
  return __builtin_shufflevector(a, b, (kCount / 2 + kLane / 2 + kLane % 2 * kCount)...);
}

/// out [columns, rows] = the transpose of in [rows, columns]; both sizes are multiples of kLanes.
template <class C>
[[gnu::noinline]] void transpose(
    int64_t rows, int64_t columns, const C* in, int64_t ld_in, C* out, int64_t ld_out) {
  constexpr auto kN = static_cast<int>(kLanes<C>);
  constexpr std::make_integer_sequence<int, kN> kAll;
  for (int64_t i = 0; i < rows; i += kN) {
    for (int64_t j = 0; j < columns; j += kN) {
      vector_t<C> v[kN];
#pragma GCC unroll 16
      for (int r = 0; r < kN; ++r) {
        v[r] = load(in + (i + r) * ld_in + j);
      }
      // Each round interleaves row r with row r + kN / 2: after log2(kN) rounds the bits of row
      // and column have changed places.
#pragma GCC unroll 4
      for (int round = 1; round < kN; round *= 2) {
        vector_t<C> next[kN];
#pragma GCC unroll 8
        for (int r = 0; r < kN / 2; ++r) {
          next[2 * r] = interleave_first(v[r], v[r + kN / 2], kAll);
          next[2 * r + 1] = interleave_second(v[r], v[r + kN / 2], kAll);
        }
#pragma GCC unroll 16
        for (int r = 0; r < kN; ++r) {
          v[r] = next[r];
        }
      }
#pragma GCC unroll 16
      for (int r = 0; r < kN; ++r) {
        store(out + (j + r) * ld_out + i, v[r]);
      }
    }
  }
}

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA

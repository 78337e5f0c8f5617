// Products of small matrices that lie in cache: C [m,n] (+)= A [m,k] B [k,n], on one thread.
//
// Registers hold a tile of kTileRows x 2 vectors of C while a column of A is broadcast against a
// row of B; with AVX-512 that is 16 sums, enough to hide the latency of the multiply-adds.
//
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

#if defined(__AVX512F__)
inline constexpr int kTileRows = 8;
template <class C>
struct Simd;
template <>
struct Simd<float> {
  using V = __m512;
  static V load(const float* x) { return _mm512_loadu_ps(x); }
  static void store(float* y, V v) { _mm512_storeu_ps(y, v); }
  static V set(float x) { return _mm512_set1_ps(x); }
  static V multiply_add(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
};
template <>
struct Simd<double> {
  using V = __m512d;
  static V load(const double* x) { return _mm512_loadu_pd(x); }
  static void store(double* y, V v) { _mm512_storeu_pd(y, v); }
  static V set(double x) { return _mm512_set1_pd(x); }
  static V multiply_add(V a, V b, V c) { return _mm512_fmadd_pd(a, b, c); }
};
#elif defined(__AVX2__)
inline constexpr int kTileRows = 4;
template <class C>
struct Simd;
template <>
struct Simd<float> {
  using V = __m256;
  static V load(const float* x) { return _mm256_loadu_ps(x); }
  static void store(float* y, V v) { _mm256_storeu_ps(y, v); }
  static V set(float x) { return _mm256_set1_ps(x); }
  static V multiply_add(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
};
template <>
struct Simd<double> {
  using V = __m256d;
  static V load(const double* x) { return _mm256_loadu_pd(x); }
  static void store(double* y, V v) { _mm256_storeu_pd(y, v); }
  static V set(double x) { return _mm256_set1_pd(x); }
  static V multiply_add(V a, V b, V c) { return _mm256_fmadd_pd(a, b, c); }
};
#else
inline constexpr int kTileRows = 4;
template <class C>
struct Simd {
  typedef C V __attribute__((vector_size(16)));  // NOLINT(modernize-use-using): attribute
  static V load(const C* x) {
    V v;
    __builtin_memcpy(&v, x, sizeof(V));
    return v;
  }
  static void store(C* y, V v) { __builtin_memcpy(y, &v, sizeof(V)); }
  static V set(C x) { return V{} + x; }
  static V multiply_add(V a, V b, V c) { return a * b + c; }
};
#endif

template <class C>
inline constexpr int64_t kLanes = sizeof(typename Simd<C>::V) / sizeof(C);
template <class C>
inline constexpr int64_t kTileColumns = 2 * kLanes<C>;

template <class C, bool kTransA>
[[gnu::always_inline]] inline void multiply_tile(int64_t k,
                                                 const C* a,
                                                 int64_t lda,
                                                 const C* b,
                                                 int64_t ldb,
                                                 bool accumulate,
                                                 C* c,
                                                 int64_t ldc) {
  using S = Simd<C>;
  typename S::V sum[kTileRows][2];
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
    sum[r][0] = accumulate ? S::load(c + r * ldc) : S::set(0);
    sum[r][1] = accumulate ? S::load(c + r * ldc + kLanes<C>) : S::set(0);
  }
  for (int64_t p = 0; p < k; ++p) {
    const typename S::V b0 = S::load(b + p * ldb);
    const typename S::V b1 = S::load(b + p * ldb + kLanes<C>);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      const typename S::V ar = S::set(kTransA ? a[p * lda + r] : a[r * lda + p]);
      sum[r][0] = S::multiply_add(ar, b0, sum[r][0]);
      sum[r][1] = S::multiply_add(ar, b1, sum[r][1]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
    S::store(c + r * ldc, sum[r][0]);
    S::store(c + r * ldc + kLanes<C>, sum[r][1]);
  }
}

/// m is rounded up to whole tiles: A and C must have the rows (columns of a transposed A). n is a
/// multiple of kTileColumns. A is [m,k], or stored as [k,m] if kTransA.
template <bool kTransA, class C>
[[gnu::noinline]] void multiply_small(int64_t m,
                                      int64_t n,
                                      int64_t k,
                                      const C* a,
                                      int64_t lda,
                                      const C* b,
                                      int64_t ldb,
                                      bool accumulate,
                                      C* c,
                                      int64_t ldc) {
  for (int64_t j = 0; j < n; j += kTileColumns<C>) {
    for (int64_t i = 0; i < m; i += kTileRows) {
      multiply_tile<C, kTransA>(k, kTransA ? a + i : a + i * lda, lda, b + j, ldb, accumulate,
                                c + i * ldc + j, ldc);
    }
  }
}

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA

// Sums along a row in kSumLanes lanes (machine/exact.h), whatever a vector of the level holds:
// element i goes into lane i % kSumLanes, and halves of the lanes are added to halves. So the bits
// are the same at every level that fuses multiply-adds.
//
// Terms that are costly to make are written to a block first (row_io.h) and summed from there.
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#include <cstdint>

#include "autograd/kernels/isa/simd.h"
#include "autograd/kernels/isa/vector_math.h"
#include "autograd/kernels/machine/exact.h"

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

// NOLINTNEXTLINE(modernize-use-using): an alias cannot carry the attribute
typedef float HalfFloatVector __attribute__((vector_size(kVectorBytes / 2)));

TAPESTRY_INLINE DoubleVector to_double(HalfFloatVector x) {
#if defined(__AVX512F__)
  return _mm512_maskz_cvtps_pd(0xff, x);
#elif defined(__AVX2__)
  return _mm256_cvtps_pd(x);
#else
  return __builtin_convertvector(x, DoubleVector);
#endif
}

/// kLanes<S> elements of x as S.
template <class S, class C>
TAPESTRY_INLINE vector_t<S> load_as(const C* x) {
  if constexpr (sizeof(S) == sizeof(C)) {
    return load(x);
  } else {
    static_assert(sizeof(S) == 2 * sizeof(C));
    HalfFloatVector v;
    __builtin_memcpy(&v, x, sizeof(v));
    return to_double(v);
  }
}

/// A sum of type S, float or double, in lanes.
template <class S>
class LaneSum {
 public:
  /// += x, n elements; every call starts with lane 0.
  template <class C>
  TAPESTRY_INLINE void add(int64_t n, const C* x) {
    int64_t i = 0;
    for (; i + kSumLanes <= n; i += kSumLanes) {
      add_lanes(x + i);
    }
    if (i < n) {
      add_lanes(Rest<C>(n - i, x + i).x);
    }
  }

  /// += (x - center)^2, of which the square is not rounded.
  template <class C>
  TAPESTRY_INLINE void add_squares(int64_t n, const C* x, S center) {
    const auto middle = broadcast(center);
    int64_t i = 0;
    for (; i + kSumLanes <= n; i += kSumLanes) {
#pragma GCC unroll 8
      for (int64_t v = 0; v < kVectors; ++v) {
        const vector_t<S> d = load_as<S>(x + i + v * kLanes<S>) - middle;
        vectors_[v] = multiply_add(d, d, vectors_[v]);
      }
    }
    if (i < n) {
      S distances[kSumLanes] = {};
      for (int64_t j = 0; i + j < n; ++j) {
        distances[j] = static_cast<S>(x[i + j]) - center;
      }
      add_dot(kSumLanes, distances, distances);
    }
  }

  /// += a b, of which the product is not rounded.
  template <class A, class B>
  TAPESTRY_INLINE void add_dot(int64_t n, const A* a, const B* b) {
    int64_t i = 0;
    for (; i + kSumLanes <= n; i += kSumLanes) {
      add_products(a + i, b + i);
    }
    if (i < n) {
      add_products(Rest<A>(n - i, a + i).x, Rest<B>(n - i, b + i).x);
    }
  }

  /// Adds vector number `v` of kSumLanes elements of type C.
  template <class C>
  TAPESTRY_INLINE void add_vector(int64_t v, vector_t<C> x) {
    if constexpr (sizeof(S) == sizeof(C)) {
      vectors_[v] += x;
    } else {
      constexpr std::make_integer_sequence<int, kLanes<S>> kHalf;
      vectors_[2 * v] += to_double(lower_part_of(x, kHalf));
      vectors_[2 * v + 1] += to_double(upper_part_of(x, kHalf));
    }
  }

  TAPESTRY_INLINE S get() const {
    vector_t<S> sums[kVectors];
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v) {
      sums[v] = vectors_[v];
    }
#pragma GCC unroll 4
    for (int64_t half = kVectors / 2; half > 0; half /= 2) {
#pragma GCC unroll 4
      for (int64_t v = 0; v < half; ++v) {
        sums[v] += sums[v + half];
      }
    }
    vector_t<S> sum = sums[0];
    constexpr std::make_integer_sequence<int, kLanes<S>> kAll;
    if constexpr (kLanes<S> >= 16) {
      sum += turned<8>(sum, kAll);
    }
    if constexpr (kLanes<S> >= 8) {
      sum += turned<4>(sum, kAll);
    }
    if constexpr (kLanes<S> >= 4) {
      sum += turned<2>(sum, kAll);
    }
    sum += turned<1>(sum, kAll);
    return sum[0];
  }

 private:
  template <class V, int... kLane>
  TAPESTRY_INLINE static auto lower_part_of(V x, std::integer_sequence<int, kLane...> /*lanes*/) {
    return __builtin_shufflevector(x, x, kLane...);
  }
  template <class V, int... kLane>
  TAPESTRY_INLINE static auto upper_part_of(V x, std::integer_sequence<int, kLane...> /*lanes*/) {
    return __builtin_shufflevector(x, x, (kLane + int{sizeof...(kLane)})...);
  }
  /// Lane i is lane i + kBy of x.
  template <int kBy, class V, int... kLane>
  TAPESTRY_INLINE static V turned(V x, std::integer_sequence<int, kLane...> /*lanes*/) {
    return __builtin_shufflevector(x, x, ((kLane + kBy) % int{sizeof...(kLane)})...);
  }

  static constexpr int64_t kVectors = kSumLanes / kLanes<S>;
  static_assert(kVectors * kLanes<S> == kSumLanes);

  /// n < kSumLanes elements and zeros, which change no sum: none is ever -0.
  template <class C>
  struct Rest {
    C x[kSumLanes] = {};
    TAPESTRY_INLINE Rest(int64_t n, const C* from) {
      for (int64_t i = 0; i < n; ++i) {
        x[i] = from[i];
      }
    }
  };

  // kSumLanes elements.
  template <class C>
  TAPESTRY_INLINE void add_lanes(const C* x) {
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v) {
      vectors_[v] += load_as<S>(x + v * kLanes<S>);
    }
  }
  template <class A, class B>
  TAPESTRY_INLINE void add_products(const A* a, const B* b) {
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v) {
      const int64_t at = v * kLanes<S>;
      vectors_[v] = multiply_add(load_as<S>(a + at), load_as<S>(b + at), vectors_[v]);
    }
  }

  vector_t<S> vectors_[kVectors] = {};
};

/// The sum of term(i) of type C for i < n, where a term is cheaper to add than to keep.
template <class C, class Term>
TAPESTRY_INLINE C sum_terms_in_lanes(int64_t n, const Term& term) {
  C lane[kSumLanes] = {};
  int64_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t j = 0; j < kSumLanes; ++j) {
      lane[j] += term(i + j);
    }
  }
  for (int64_t j = 0; i + j < n; ++j) {
    lane[j] += term(i + j);
  }
  LaneSum<C> sum;
  sum.add(kSumLanes, lane);
  return sum.get();
}

/// The sum of n elements, as S.
template <class S, class C>
TAPESTRY_INLINE S sum_in_lanes(int64_t n, const C* x) {
  LaneSum<S> sum;
  sum.add(n, x);
  return sum.get();
}

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA

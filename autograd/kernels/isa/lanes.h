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

/// kLanes<S> elements of x as S.
template <class S, class C>
TAPESTRY_INLINE vector_t<S> load_as(const C* x) {
  if constexpr (sizeof(S) == sizeof(C)) {
    return load(x);
  } else {
    // NOLINTNEXTLINE(modernize-use-using): an alias cannot carry the attribute
    typedef C Narrow __attribute__((vector_size(kVectorBytes / 2)));
    static_assert(sizeof(S) == 2 * sizeof(C));
    Narrow v;
    __builtin_memcpy(&v, x, sizeof(v));
    return __builtin_convertvector(v, vector_t<S>);
  }
}

/// A sum of type S, float or double, in lanes.
template <class S>
class LaneSum {
 public:
  /// += x, n elements; every call starts with lane 0.
  template <class C>
  TAPESTRY_INLINE void add(int64_t n, const C* x) {
    add_terms(
        n, [&](int64_t i) { return load_as<S>(x + i); },
        [&](int64_t i) { return static_cast<S>(x[i]); });
  }

  /// += (x - center)^2, of which the square is not rounded.
  template <class C>
  TAPESTRY_INLINE void add_squares(int64_t n, const C* x, S center) {
    const auto middle = broadcast(center);
    add_products(
        n, [&](int64_t i) { return Pair<vector_t<S>>::square(load_as<S>(x + i) - middle); },
        [&](int64_t i) { return Pair<S>::square(static_cast<S>(x[i]) - center); });
  }

  /// += a b, of which the product is not rounded.
  template <class A, class B>
  TAPESTRY_INLINE void add_dot(int64_t n, const A* a, const B* b) {
    add_products(
        n,
        [&](int64_t i) {
          return Pair<vector_t<S>>{load_as<S>(a + i), load_as<S>(b + i)};
        },
        [&](int64_t i) {
          return Pair<S>{static_cast<S>(a[i]), static_cast<S>(b[i])};
        });
  }

  TAPESTRY_INLINE S get() const {
    S lane[kSumLanes];
    __builtin_memcpy(lane, vectors_, sizeof(lane));
    for (int64_t half = kSumLanes / 2; half > 0; half /= 2) {
      for (int64_t i = 0; i < half; ++i) {
        lane[i] += lane[i + half];
      }
    }
    return lane[0];
  }

 private:
  static constexpr int64_t kVectors = kSumLanes / kLanes<S>;
  static_assert(kVectors * kLanes<S> == kSumLanes);

  template <class V>
  struct Pair {
    V a;
    V b;
    TAPESTRY_INLINE static Pair square(V d) { return {d, d}; }
  };

  /// Calls vector(v, i) for whole vectors of elements from i, and scalar(lane, i) for the rest.
  template <class Vector, class Scalar>
  TAPESTRY_INLINE void for_lanes(int64_t n, const Vector& vector, const Scalar& scalar) {
    vector_t<S> sums[kVectors];
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v) {
      sums[v] = vectors_[v];
    }
    int64_t i = 0;
    for (; i + kSumLanes <= n; i += kSumLanes) {
#pragma GCC unroll 8
      for (int64_t v = 0; v < kVectors; ++v) {
        vector(sums[v], i + v * kLanes<S>);
      }
    }
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v) {
      vectors_[v] = sums[v];
    }
    if (i < n) {
      S lane[kSumLanes];
      __builtin_memcpy(lane, vectors_, sizeof(lane));
      for (int64_t j = 0; i + j < n; ++j) {
        scalar(lane[j], i + j);
      }
      __builtin_memcpy(vectors_, lane, sizeof(lane));
    }
  }

  template <class Vector, class Scalar>
  TAPESTRY_INLINE void add_terms(int64_t n, const Vector& vector, const Scalar& scalar) {
    for_lanes(
        n, [&](vector_t<S>& sum, int64_t i) { sum += vector(i); },
        [&](S& sum, int64_t i) { sum += scalar(i); });
  }

  template <class Vector, class Scalar>
  TAPESTRY_INLINE void add_products(int64_t n, const Vector& vector, const Scalar& scalar) {
    for_lanes(
        n,
        [&](vector_t<S>& sum, int64_t i) {
          const auto factors = vector(i);
          sum = multiply_add(factors.a, factors.b, sum);
        },
        [&](S& sum, int64_t i) {
          const auto factors = scalar(i);
          sum = multiply_add(factors.a, factors.b, sum);
        });
  }

  vector_t<S> vectors_[kVectors] = {};
};

/// The sum of n elements, as S.
template <class S, class C>
TAPESTRY_INLINE S sum_in_lanes(int64_t n, const C* x) {
  LaneSum<S> sum;
  sum.add(n, x);
  return sum.get();
}

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA

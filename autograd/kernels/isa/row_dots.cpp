#include "autograd/kernels/gemm/row_dots.h"

#include "autograd/kernels/isa/simd.h"

namespace tapestry::kernels::TAPESTRY_ISA {

void float_row_dots(
    int64_t rows, int64_t columns, int64_t n, const float* x, const float* w, float* y);
void double_row_dots(
    int64_t rows, int64_t columns, int64_t n, const double* x, const double* w, double* y);

namespace {

// A sum runs in as many lanes as a cache line has elements, at every CPU level: in one vector, or
// in several where they are shorter.
template <class C>
inline constexpr int64_t kDotLanes = 64 / static_cast<int64_t>(sizeof(C));
inline constexpr int kDotVectors = 64 / kVectorBytes;

/// The sum of the lanes: of both halves, then of their halves, ...
template <class C>
[[gnu::always_inline]] inline C sum_of_lanes(const vector_t<C>* v) {
  C lanes[kDotLanes<C>];
#pragma GCC unroll 4
  for (int64_t part = 0; part < kDotVectors; ++part) {
    store(lanes + part * kLanes<C>, v[part]);
  }
#pragma GCC unroll 4
  for (int64_t half = kDotLanes<C> / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) {
      lanes[i] += lanes[i + half];
    }
  }
  return lanes[0];
}

/// The first m lanes of x, and zeros; m may be below 0 or above their number.
template <class C>
[[gnu::always_inline]] inline vector_t<C> load_first(int64_t m, const C* x) {
  C lanes[kLanes<C>] = {};
  for (int64_t i = 0; i < kLanes<C> && i < m; ++i) {
    lanes[i] = x[i];
  }
  return load(lanes);
}

/// One row times kColumns others. Each product is one chain of vectors, so its bits do not depend
/// on how many there are.
template <int kColumns, class C>
[[gnu::always_inline]] inline void dots(int64_t n, const C* x, const C* w, C* y) {
  vector_t<C> sums[kColumns][kDotVectors] = {};
  const int64_t whole = n / kDotLanes<C> * kDotLanes<C>;
  for (int64_t i = 0; i < whole; i += kDotLanes<C>) {
#pragma GCC unroll 4
    for (int part = 0; part < kDotVectors; ++part) {
      const int64_t at = i + part * kLanes<C>;
      const vector_t<C> row = load(x + at);
#pragma GCC unroll 8
      for (int c = 0; c < kColumns; ++c) {
        sums[c][part] = multiply_add(row, load(w + c * n + at), sums[c][part]);
      }
    }
  }
  for (int part = 0; whole < n && part < kDotVectors; ++part) {
    const int64_t at = whole + part * kLanes<C>;
    const vector_t<C> row = load_first(n - at, x + at);
    for (int c = 0; c < kColumns; ++c) {
      sums[c][part] = multiply_add(row, load_first(n - at, w + c * n + at), sums[c][part]);
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < kColumns; ++c) {
    y[c] = sum_of_lanes<C>(sums[c]);
  }
}

template <int kColumns, class C>
[[gnu::noinline]] void dots_of_columns(
    int64_t rows, int64_t columns, int64_t n, const C* x, const C* w, C* y) {
  for (int64_t r = 0; r < rows; ++r) {
    dots<kColumns>(n, x + r * n, w, y + r * columns);
  }
}

// A few columns, which stay in the cache, with all rows.
template <class C>
[[gnu::always_inline]] inline void all_dots(
    int64_t rows, int64_t columns, int64_t n, const C* x, const C* w, C* y) {
  constexpr int kBlock = 8 / kDotVectors;  // eight sums in registers
  int64_t c = 0;
  for (; c + kBlock <= columns; c += kBlock) {
    dots_of_columns<kBlock>(rows, columns, n, x, w + c * n, y + c);
  }
  for (; c < columns; ++c) {
    dots_of_columns<1>(rows, columns, n, x, w + c * n, y + c);
  }
}

}  // namespace

void float_row_dots(
    int64_t rows, int64_t columns, int64_t n, const float* x, const float* w, float* y) {
  all_dots(rows, columns, n, x, w, y);
}

void double_row_dots(
    int64_t rows, int64_t columns, int64_t n, const double* x, const double* w, double* y) {
  all_dots(rows, columns, n, x, w, y);
}

}  // namespace tapestry::kernels::TAPESTRY_ISA

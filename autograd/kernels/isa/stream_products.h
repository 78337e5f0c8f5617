// Products of a few rows with a few others, as hyper-connections have them: rows are long, and each
// number is made by the same operations whichever rows there are besides.
//
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#include <cstdint>

#include "autograd/kernels/isa/simd.h"
#include "autograd/kernels/isa/vector_math.h"

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

template <class C>
C sum_of_vector(vector_t<C> v) {
  C lanes[kLanes<C>];
  store(lanes, v);
  for (int64_t half = kLanes<C> / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) {
      lanes[i] += lanes[i + half];
    }
  }
  return lanes[0];
}

template <class C>
vector_t<C> first_lanes(int64_t m, const C* x) {
  C lanes[kLanes<C>] = {};
  for (int64_t i = 0; i < m; ++i) {
    lanes[i] = x[i];
  }
  return load(lanes);
}

/// out[r * ld + c] += a[r] . b[c], each product a chain of its own.
template <int kRows, int kColumns, class C>
[[gnu::noinline]] void dot_tile(
    int64_t n, const C* const* a, const C* const* b, C* out, int64_t ld) {
  vector_t<C> sums[kRows][kColumns] = {};
  const int64_t whole = n / kLanes<C> * kLanes<C>;
  for (int64_t k = 0; k < whole; k += kLanes<C>) {
    vector_t<C> left[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      left[r] = load(a[r] + k);
    }
#pragma GCC unroll 6
    for (int c = 0; c < kColumns; ++c) {
      const vector_t<C> right = load(b[c] + k);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        sums[r][c] = multiply_add(left[r], right, sums[r][c]);
      }
    }
  }
  for (int c = 0; c < kColumns; ++c) {
    const vector_t<C> right = first_lanes(n - whole, b[c] + whole);
    for (int r = 0; r < kRows; ++r) {
      sums[r][c] = multiply_add(first_lanes(n - whole, a[r] + whole), right, sums[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      out[r * ld + c] += sum_of_vector<C>(sums[r][c]);
    }
  }
}

constexpr int kDotRows = kVectorBytes == 64 ? 4 : 2;
constexpr int kDotColumns = 6;

template <int kRows, class C>
void dot_columns(
    int64_t n, const C* const* a, int64_t columns, const C* const* b, C* out, int64_t ld) {
  int64_t c = 0;
  for (; c + kDotColumns <= columns; c += kDotColumns) {
    dot_tile<kRows, kDotColumns>(n, a, b + c, out + c, ld);
  }
  switch (columns - c) {
    case 5:
      return dot_tile<kRows, 5>(n, a, b + c, out + c, ld);
    case 4:
      return dot_tile<kRows, 4>(n, a, b + c, out + c, ld);
    case 3:
      return dot_tile<kRows, 3>(n, a, b + c, out + c, ld);
    case 2:
      return dot_tile<kRows, 2>(n, a, b + c, out + c, ld);
    case 1:
      return dot_tile<kRows, 1>(n, a, b + c, out + c, ld);
    default:
      return;
  }
}

/// out[r * ld + c] += a[r] . b[c] for all rows and columns.
template <class C>
void dots(int64_t n,
          int64_t rows,
          const C* const* a,
          int64_t columns,
          const C* const* b,
          C* out,
          int64_t ld) {
  int64_t r = 0;
  for (; r + kDotRows <= rows; r += kDotRows) {
    dot_columns<kDotRows>(n, a + r, columns, b, out + r * ld, ld);
  }
  for (; r < rows; ++r) {
    dot_columns<1>(n, a + r, columns, b, out + r * ld, ld);
  }
}

/// y = sum_s c[s] x[s], or added to y; n elements.
template <int kCount, bool kAdds, class C>
void weighted(int64_t n, const C* c, const C* const* x, C* y) {
  C factor[kCount];
  const C* source[kCount];
  for (int s = 0; s < kCount; ++s) {
    factor[s] = c[s];
    source[s] = x[s];
  }
  TAPESTRY_VECTOR_LOOP
  for (int64_t k = 0; k < n; ++k) {
    C sum = kAdds ? y[k] : C(0);
#pragma GCC unroll 4
    for (int s = 0; s < kCount; ++s) {
      sum += factor[s] * source[s][k];
    }
    y[k] = sum;
  }
}
template <bool kAdds, class C>
void weighted_some(int64_t n, int64_t count, const C* c, const C* const* x, C* y) {
  switch (count) {
    case 1:
      return weighted<1, kAdds>(n, c, x, y);
    case 2:
      return weighted<2, kAdds>(n, c, x, y);
    case 3:
      return weighted<3, kAdds>(n, c, x, y);
    default:
      return weighted<4, kAdds>(n, c, x, y);
  }
}
template <class C>
void weighted_sum(int64_t n, int64_t count, const C* c, const C* const* x, C* y) {
  constexpr int64_t kMost = 4;
  weighted_some<false>(n, smaller(count, kMost), c, x, y);
  for (int64_t s = kMost; s < count; s += kMost) {
    weighted_some<true>(n, smaller(count - s, kMost), c + s, x + s, y);
  }
}

/// y[r, k] += sum_j c[r * m + j] w[j * ld + k] for kVectors vectors of columns.
template <int kRows, int kVectors, class C>
[[gnu::noinline]] void add_product_tile(
    int64_t m, const C* c, const C* w, int64_t ld, C* y, int64_t ld_y) {
  vector_t<C> sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = load(y + r * ld_y + v * kLanes<C>);
    }
  }
  for (int64_t j = 0; j < m; ++j) {
    vector_t<C> row[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      row[v] = load(w + j * ld + v * kLanes<C>);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const vector_t<C> factor = broadcast(c[r * m + j]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = multiply_add(factor, row[v], sums[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      store(y + r * ld_y + v * kLanes<C>, sums[r][v]);
    }
  }
}

constexpr int kProductRows = kVectorBytes == 64 ? 8 : 4;

/// The same for n columns of some rows; the last ones, less than a vector, by way of a padded copy.
template <int kRows, class C>
void add_products_of_rows(
    int64_t n, int64_t m, const C* c, const C* w, int64_t ld, C* y, int64_t ld_y) {
  int64_t k = 0;
  for (; k + 2 * kLanes<C> <= n; k += 2 * kLanes<C>) {
    add_product_tile<kRows, 2>(m, c, w + k, ld, y + k, ld_y);
  }
  for (; k + kLanes<C> <= n; k += kLanes<C>) {
    add_product_tile<kRows, 1>(m, c, w + k, ld, y + k, ld_y);
  }
  for (int r = 0; r < kRows && k < n; ++r) {
    vector_t<C> sum = first_lanes(n - k, y + r * ld_y + k);
    for (int64_t j = 0; j < m; ++j) {
      sum = multiply_add(broadcast(c[r * m + j]), first_lanes(n - k, w + j * ld + k), sum);
    }
    C lanes[kLanes<C>];
    store(lanes, sum);
    for (int64_t i = 0; i < n - k; ++i) {
      y[r * ld_y + k + i] = lanes[i];
    }
  }
}
template <class C>
void add_products(
    int64_t rows, int64_t n, int64_t m, const C* c, const C* w, int64_t ld, C* y, int64_t ld_y) {
  int64_t r = 0;
  for (; r + kProductRows <= rows; r += kProductRows) {
    add_products_of_rows<kProductRows>(n, m, c + r * m, w, ld, y + r * ld_y, ld_y);
  }
  for (; r < rows; ++r) {
    add_products_of_rows<1>(n, m, c + r * m, w, ld, y + r * ld_y, ld_y);
  }
}

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA

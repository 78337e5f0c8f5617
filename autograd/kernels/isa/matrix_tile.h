// Products of small matrices that lie in cache, C [m,n] = or += A [m,k] B [k,n], on one thread,
// where only a band of some matrix of scores matters.
//
// Registers hold a tile of kTileRows x 2 vectors of C while a column of A is broadcast against a
// row of B; with AVX-512 that is 16 sums, enough to hide the latency of the multiply-adds.
//
// A and B are made of items: a float or double, or a Pair of bfloat16, neighbours in the direction
// k that is summed over, whose two products one instruction adds to a float.
//
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#include <cstdint>

#include "autograd/kernels/isa/simd.h"

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

#if defined(__AVX512F__)
inline constexpr int kTileRows = 8;
#else
inline constexpr int kTileRows = 4;
#endif

/// What a product of items is made of.
template <class C>
struct Product {
  using Sum = C;
  using SumVector = vector_t<C>;
  using ItemVector = vector_t<C>;
  static ItemVector row(const C* b) { return load(b); }
  static ItemVector all(const C* a) { return broadcast(*a); }
  static SumVector add(ItemVector a, ItemVector b, SumVector sum) {
    return multiply_add(a, b, sum);
  }
};

#if defined(TAPESTRY_PAIRS)
/// Two bfloat16, the first in the low half.
struct Pair {
  uint32_t bits;
};
template <>
struct Product<Pair> {
  using Sum = float;
  using SumVector = FloatVector;
  using ItemVector = __m512bh;
  [[gnu::always_inline]] static ItemVector row(const Pair* b) {
    return reinterpret_cast<__m512bh>(_mm512_loadu_si512(b));
  }
  [[gnu::always_inline]] static ItemVector all(const Pair* a) {
    int bits = 0;  // of any alignment: two neighbours in a row of bfloat16 are read as a pair
    __builtin_memcpy(&bits, a, sizeof(bits));
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
  }
  [[gnu::always_inline]] static SumVector add(ItemVector a, ItemVector b, SumVector sum) {
    return _mm512_dpbf16_ps(sum, a, b);
  }
};
#endif

/// A matrix of items; rows are ld items apart.
template <class Item>
struct Operand {
  const Item* data;
  int64_t ld;
};

/// Nothing is done between the items of a sum.
struct NoFetch {};
/// Items of a sum after which a fetch is told to go on.
inline constexpr int64_t kItemsPerFetch = 16;

/// sum += item p of kTileRows rows of A, or of as many columns if kTransA, times row p of B.
template <class Item, int kVectors, bool kTransA>
[[gnu::always_inline]] inline void multiply_item(
    int64_t p,
    const Item* a,
    int64_t lda,
    const Item* b,
    int64_t ldb,
    typename Product<Item>::SumVector (&sum)[kTileRows][kVectors]) {
  using P = Product<Item>;
  typename P::ItemVector row[kVectors];
#pragma GCC unroll 3
  for (int v = 0; v < kVectors; ++v) {
    row[v] = P::row(b + p * ldb + v * kLanes<typename P::Sum>);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
    const typename P::ItemVector ar = P::all(kTransA ? a + p * lda + r : a + r * lda + p);
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = P::add(ar, row[v], sum[r][v]);
    }
  }
}

/// fetch.go_on() is called again and again during the sum.
template <class Item, int kVectors, bool kTransA, class Fetch = NoFetch>
[[gnu::always_inline]] inline void multiply_tile(int64_t k,
                                                 const Item* a,
                                                 int64_t lda,
                                                 const Item* b,
                                                 int64_t ldb,
                                                 bool accumulate,
                                                 typename Product<Item>::Sum* c,
                                                 int64_t ldc,
                                                 [[maybe_unused]] Fetch&& fetch = {}) {
  using P = Product<Item>;
  using C = typename P::Sum;
  typename P::SumVector sum[kTileRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = accumulate ? load(c + r * ldc + v * kLanes<C>) : typename P::SumVector{};
    }
  }
  if constexpr (requires { fetch.go_on(); }) {
    for (int64_t p = 0; p < k;) {
      fetch.go_on();
      const int64_t end = p + kItemsPerFetch < k ? p + kItemsPerFetch : k;
      for (; p < end; ++p) {
        multiply_item<Item, kVectors, kTransA>(p, a, lda, b, ldb, sum);
      }
    }
  } else {
    for (int64_t p = 0; p < k; ++p) {
      multiply_item<Item, kVectors, kTransA>(p, a, lda, b, ldb, sum);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      store(c + r * ldc + v * kLanes<C>, sum[r][v]);
    }
  }
}

/// c = A B where `wanted(row, column)`, asked once for each tile row and vector, says so; other
/// elements may or may not be written. m is rounded up to whole tiles, whose rows A and C must
/// have; n is a multiple of kLanes.
template <class Item, class Wanted>
[[gnu::always_inline]] inline void multiply_where(int64_t m,
                                                  int64_t n,
                                                  int64_t k,
                                                  Operand<Item> a,
                                                  Operand<Item> b,
                                                  typename Product<Item>::Sum* c,
                                                  int64_t ldc,
                                                  const Wanted& wanted) {
  constexpr int64_t kL = kLanes<typename Product<Item>::Sum>;
  for (int64_t j = 0; j < n; j += 2 * kL) {
    const bool two = j + kL < n;
    for (int64_t i = 0; i < m; i += kTileRows) {
      const Item* rows = a.data + i * a.ld;
      const bool first = wanted(i, j);
      const bool second = two && wanted(i, j + kL);
      if (first && second) {
        multiply_tile<Item, 2, false>(k, rows, a.ld, b.data + j, b.ld, false, c + i * ldc + j, ldc);
      } else if (first || second) {
        const int64_t column = first ? j : j + kL;
        multiply_tile<Item, 1, false>(k, rows, a.ld, b.data + column, b.ld, false,
                                      c + i * ldc + column, ldc);
      }
    }
  }
}

/// A range of the items that are summed over.
struct Span {
  int64_t begin;
  int64_t end;
};

/// c += A B, the tile of rows from i on over the items `span(i)` only. A is [m,k], or stored as
/// [k,m] if kTransA. m and n as above.
template <bool kTransA, class Item, class SpanOf>
[[gnu::always_inline]] inline void multiply_accumulate(int64_t m,
                                                       int64_t n,
                                                       Operand<Item> a,
                                                       Operand<Item> b,
                                                       typename Product<Item>::Sum* c,
                                                       int64_t ldc,
                                                       const SpanOf& span_of) {
  constexpr int64_t kL = kLanes<typename Product<Item>::Sum>;
  for (int64_t j = 0; j < n; j += 2 * kL) {
    for (int64_t i = 0; i < m; i += kTileRows) {
      const Span span = span_of(i);
      const int64_t k = span.end - span.begin;
      if (k <= 0) {
        continue;
      }
      const Item* factors =
          kTransA ? a.data + span.begin * a.ld + i : a.data + i * a.ld + span.begin;
      const Item* rows = b.data + span.begin * b.ld + j;
      if (j + kL < n) {
        multiply_tile<Item, 2, kTransA>(k, factors, a.ld, rows, b.ld, true, c + i * ldc + j, ldc);
      } else {
        multiply_tile<Item, 1, kTransA>(k, factors, a.ld, rows, b.ld, true, c + i * ldc + j, ldc);
      }
    }
  }
}

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA

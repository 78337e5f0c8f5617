// Blocks of rows of q, k, v and their gradients as the factors of products.
//
// With X a block of rows [kB, channels] there are three forms:
//   rows        X as a left factor, summed over channels
//   transposed  X^T as a right factor, summed over channels
//   stacked     X as a right factor, summed over rows
// and of the scores, which are kept as [keys, queries],
//   by_key      as a left factor, summed over queries
//   by_query    their transpose as a left factor, summed over keys.
// WideOperands has items of the compute type, and rows and stacked are the same, as are by_key and
// by_query. PairOperands has pairs of bfloat16, which differ in the direction that they are paired
// in.
//
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#include "autograd/kernels/attention/attention_call.h"
#include "autograd/kernels/isa/matrix_tile.h"
#include "autograd/kernels/isa/row_io.h"

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

constexpr int64_t kB = kAttentionBlock;

/// Rows that are needed soon: each call of go_on() fetches one into the second-level cache. Rows
/// lie far apart, so that the processor does not foresee them.
template <class T>
struct RowFetch {
  const T* next = nullptr;
  int64_t stride = 0;
  int64_t rows = 0;
  int64_t dim = 0;

  [[gnu::always_inline]] void go_on() {
    if (rows > 0) {
      constexpr auto kPerLine = static_cast<int64_t>(64 / sizeof(T));
      for (int64_t d = 0; d < dim; d += kPerLine) {
        __builtin_prefetch(next + d, 0, 2);
      }
      next += stride;
      --rows;
    }
  }
};

[[gnu::always_inline]] inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
[[gnu::always_inline]] inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
[[gnu::always_inline]] inline int64_t round_down(int64_t n, int64_t unit) {
  return n / unit * unit;
}
[[gnu::always_inline]] inline int64_t round_up(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

template <class T>
struct WideOperands {
  using C = compute_t<T>;
  using Item = C;
  static constexpr int64_t kPerItem = 1;
  static constexpr bool kSameForm = true;  // of rows and stacked

  /// `count` rows of `dim` elements: as they lie if they are of the compute type, `direct`, and
  /// fill whole tiles and vectors; else copied, with zeros up to kB rows and whole vectors.
  [[gnu::noinline]] static Operand<Item> rows(
      const T* x, int64_t stride, int64_t count, int64_t dim, bool direct, Item* buffer) {
    const int64_t padded = attention_padded(dim);
    if constexpr (kSame<T, C>) {
      if (direct && count == kB && dim == padded) {
        return {x, stride};
      }
    }
    for (int64_t i = 0; i < kB; ++i) {
      C* row = buffer + i * padded;
      const int64_t used = i < count ? dim : 0;
      if (used > 0) {
        load_row(dim, x + i * stride, row);
      }
      for (int64_t d = used; d < padded; ++d) {
        row[d] = 0;
      }
    }
    return {buffer, padded};
  }
  static Operand<Item> stacked(Operand<Item> rows, int64_t /*dim*/, Item* /*buffer*/) {
    return rows;
  }
  static Operand<Item> transposed(Operand<Item> rows, int64_t dim, Item* buffer) {
    transpose(kB, attention_padded(dim), rows.data, rows.ld, buffer, kB);
    return {buffer, kB};
  }
  /// Puts neighbours in a row of scores, from [key, query] on, into the operand by_key.
  static constexpr int64_t kNeighbours = 1;
  [[gnu::always_inline]] static void put_by_key(const vector_t<C> (&x)[kNeighbours],
                                                int64_t key,
                                                int64_t query,
                                                Item* buffer) {
    store(buffer + key * kB + query, x[0]);
  }
  /// Puts those of two rows into the operand by_query.
  [[gnu::always_inline]] static void put_by_query(
      vector_t<C> first, vector_t<C> second, int64_t key, int64_t query, Item* buffer) {
    store(buffer + key * kB + query, first);
    store(buffer + (key + 1) * kB + query, second);
  }

  /// out = x factor; x may change.
  [[gnu::always_inline]] static void store_scaled(int64_t dim, C factor, C* x, T* out) {
    if constexpr (kSame<T, C>) {
      TAPESTRY_VECTOR_LOOP
      for (int64_t d = 0; d < dim; ++d) {
        out[d] = x[d] * factor;
      }
    } else {
      TAPESTRY_VECTOR_LOOP
      for (int64_t d = 0; d < dim; ++d) {
        x[d] *= factor;
      }
      store_row(dim, x, out);
    }
  }
};

#if defined(TAPESTRY_PAIRS)
struct PairOperands {
  using C = float;
  using Item = Pair;
  static constexpr int64_t kPerItem = 2;
  static constexpr bool kSameForm = false;

  /// Items in a row: whole vectors, for the transpose.
  static int64_t row_items(int64_t dim) { return round_up(dim, 32) / 2; }

  [[gnu::noinline]] static Operand<Item> rows(
      const BFloat16* x, int64_t stride, int64_t count, int64_t dim, bool direct, Item* buffer) {
    if (direct && count == kB && dim % 32 == 0 && stride % 2 == 0) {
      return {reinterpret_cast<const Item*>(x), stride / 2};
    }
    const int64_t items = row_items(dim);
    const int64_t whole = round_down(dim, 32);
    const __mmask32 rest = (1U << static_cast<uint32_t>(dim - whole)) - 1;
    for (int64_t i = 0; i < kB; ++i) {
      Item* row = buffer + i * items;
      const BFloat16* from = x + i * stride;
      for (int64_t d = 0; d < whole; d += 32) {
        const __m512i v = i < count ? _mm512_loadu_si512(from + d) : _mm512_setzero_si512();
        _mm512_storeu_si512(row + d / 2, v);
      }
      if (rest != 0) {
        const __m512i v =
            i < count ? _mm512_maskz_loadu_epi16(rest, from + whole) : _mm512_setzero_si512();
        _mm512_storeu_si512(row + whole / 2, v);
      }
    }
    return {buffer, items};
  }
  /// Item [i / 2, d] holds X[i, d] and X[i + 1, d].
  static Operand<Item> stacked(Operand<Item> rows, int64_t dim, Item* buffer) {
    const int64_t padded = attention_padded(dim);
    const __m512i first = interleaving(0);
    const __m512i second = interleaving(16);
    for (int64_t i = 0; i < kB; i += 2) {
      const Item* even = rows.data + i * rows.ld;
      const Item* odd = even + rows.ld;
      Item* out = buffer + i / 2 * padded;
      for (int64_t d = 0; d < padded; d += 32) {
        const __m512i a = _mm512_loadu_si512(even + d / 2);
        const __m512i b = _mm512_loadu_si512(odd + d / 2);
        _mm512_storeu_si512(out + d, _mm512_permutex2var_epi16(a, first, b));
        if (d + 16 < padded) {
          _mm512_storeu_si512(out + d + 16, _mm512_permutex2var_epi16(a, second, b));
        }
      }
    }
    return {buffer, padded};
  }
  static Operand<Item> transposed(Operand<Item> rows, int64_t dim, Item* buffer) {
    static_assert(sizeof(Item) == sizeof(float));  // only moved: any bits will do
    transpose(kB, row_items(dim), reinterpret_cast<const float*>(rows.data), rows.ld,
              reinterpret_cast<float*>(buffer), kB);
    return {buffer, kB};
  }
  static constexpr int64_t kNeighbours = 2;
  [[gnu::always_inline]] static void put_by_key(const FloatVector (&x)[kNeighbours],
                                                int64_t key,
                                                int64_t query,
                                                Item* buffer) {
    const __m512bh both = _mm512_cvtne2ps_pbh(x[1], x[0]);
    _mm512_storeu_si512(buffer + (key * kB + query) / 2, reinterpret_cast<__m512i>(both));
  }
  [[gnu::always_inline]] static void put_by_query(
      FloatVector first, FloatVector second, int64_t key, int64_t query, Item* buffer) {
    const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
    const __m512i pairs = _mm512_maskz_permutexvar_epi16(0xffffffffU, interleaving(0, 16), both);
    _mm512_storeu_si512(buffer + key / 2 * kB + query, pairs);
  }

  [[gnu::always_inline]] static void store_scaled(int64_t dim, C factor, C* x, BFloat16* out) {
    const __m512 factors = _mm512_set1_ps(factor);
    for (int64_t d = 0; d < dim; d += 32) {  // x is padded to vectors of 16
      const __m512 low = _mm512_loadu_ps(x + d) * factors;
      const __m512 high = d + 16 < dim ? _mm512_loadu_ps(x + d + 16) * factors : __m512{};
      const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
      if (d + 32 <= dim) {
        _mm512_storeu_si512(out + d, both);
      } else {
        _mm512_mask_storeu_epi16(out + d, (1U << static_cast<uint32_t>(dim - d)) - 1, both);
      }
    }
  }

 private:
  /// Indices from, from + other, from + 1, from + 1 + other, ...: for two vectors of 32 by
  /// default.
  static __m512i interleaving(uint16_t from, uint16_t other = 32) {
    uint16_t index[32];
    for (uint16_t i = 0; i < 32; ++i) {
      index[i] = static_cast<uint16_t>(from + i / 2 + i % 2 * other);
    }
    return _mm512_loadu_si512(index);
  }
};
#endif

template <class T>
struct OperandsFor {
  using type = WideOperands<T>;
};
#if defined(TAPESTRY_PAIRS)
template <>
struct OperandsFor<BFloat16> {
  using type = PairOperands;
};
#endif
template <class T>
using operands_for = typename OperandsFor<T>::type;

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA

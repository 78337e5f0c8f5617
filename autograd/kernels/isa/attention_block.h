// A block of scores [keys, queries]: which of them are visible, the products
// around it, dropout.
//
// Scores are kept transposed: so K lies as the left factor of a product wants
// it, the statistics of the queries are vectors, and of the inputs only a block
// of Q (and of dout) has to be transposed, once for all its keys.
//
// Only for sources in kernels/isa/: everything here has internal linkage, per
// level.
#pragma once

#include "autograd/kernels/isa/attention_operands.h"
#include "autograd/kernels/philox.h"
#include "autograd/kernels/philox_blocks.h"

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

/// Row `row` of sample b and head (or group) h.
template <class T>
[[gnu::always_inline]] inline T* at(const AttentionOutput& x, int64_t b, int64_t h, int64_t row) {
  const AttentionStrides& s = x.strides;
  return static_cast<T*>(x.data) + b * s.batch + h * s.head + row * s.row;
}
template <class T>
[[gnu::always_inline]] inline const T* at(const AttentionInput& x,
                                          int64_t b,
                                          int64_t h,
                                          int64_t row) {
  const AttentionStrides& s = x.strides;
  return static_cast<const T*>(x.data) + b * s.batch + h * s.head + row * s.row;
}

/// Queries are skipped in units of so many: the widest vector, and at any level
/// the same, so that what one loop writes is what the next one reads.
inline constexpr int64_t kColumns = 16;

/// A block of queries: the first one and its position, how many, and that number in whole units.
struct Queries {
  int64_t begin;
  int64_t position;
  int64_t count;
  int64_t columns;
};

/// Those from `begin` on, at most as many as up to `end`; `offset` makes a position of a query.
inline Queries queries_from(int64_t begin, int64_t end, int64_t offset) {
  const int64_t count = smaller(kB, end - begin);
  return {begin, begin + offset, count, round_up(count, kColumns)};
}

struct Keys {
  int64_t begin;
  int64_t end;
};

/// Where the documents of a block of queries begin; null if all is one document.
inline const int32_t* starts_of(const AttentionDocuments& documents,
                                int64_t sample,
                                const Queries& q) {
  return documents.start == nullptr ? nullptr
                                    : documents.start + sample * documents.batch + q.position;
}

/// The keys that some query of the block sees, but for the mask; empty if begin
/// >= end.
inline Keys visible_keys(const AttentionShape& s, const int32_t* starts, const Queries& q) {
  const int64_t first = q.position;
  const int64_t last = first + q.count - 1;
  const int64_t begin = s.window_left >= 0 ? larger(first - s.window_left, 0) : 0;
  return {starts == nullptr ? begin : larger(begin, starts[0]),
          s.causal ? smaller(last + 1, s.kv_len) : s.kv_len};
}

/// A block of scores. Key j of it is visible to query i, but for the mask, if
/// first_key[i] <= j < k_count and j - i <= above.
///
/// Loops leave out what is invisible in units: tiles of kTileRows keys by
/// kColumns queries. `touches` says which units hold a visible score, and all
/// loops agree on it: the scores of the others are neither written nor read.
struct Block {
  int64_t k_begin;
  int64_t k_count;
  int64_t k_rows;  // k_count in whole tiles
  int64_t columns;
  int64_t above;
  bool cut_below;                     // some query does not see the first key
  int32_t first_key[kB];              // does not decrease; at most kB
  int32_t query_end[kB / kTileRows];  // of each tile: behind the last query that sees a key of it

  [[gnu::always_inline]] bool touches(int64_t tile, int64_t column) const {
    const int64_t first = round_down(column, kColumns);
    return tile - (first + kColumns - 1) <= above && tile + kTileRows - 1 >= first_key[first];
  }
  /// The keys of the units that hold query `column`, in whole tiles.
  [[gnu::always_inline]] Span keys_of(int64_t column) const {
    const int64_t first = round_down(column, kColumns);
    const int64_t end = first + kColumns + above;
    return {round_down(first_key[first], kTileRows),
            end <= 0 ? 0 : smaller(round_up(end, kTileRows), k_rows)};
  }
};

/// The block of `count` keys from k_begin on; `starts` as starts_of() has them.
[[gnu::noinline]] inline Block block_of(const AttentionShape& s,
                                        const int32_t* starts,
                                        const Queries& q,
                                        int64_t k_begin,
                                        int64_t count) {
  constexpr int64_t kAny = int64_t{1} << 40;
  const int64_t shift = q.position - k_begin;
  Block block;
  block.k_begin = k_begin;
  block.k_count = count;
  block.k_rows = round_up(count, kTileRows);
  block.columns = q.columns;
  block.above = s.causal ? shift : kAny;
  for (int64_t i = 0; i < kB; ++i) {
    const int64_t window = s.window_left >= 0 ? i + shift - s.window_left : 0;
    const int64_t document = starts != nullptr ? starts[smaller(i, q.count - 1)] - k_begin : 0;
    block.first_key[i] = static_cast<int32_t>(smaller(larger(larger(window, document), 0), kB));
  }
  block.cut_below = block.first_key[q.columns - 1] > 0;
  int32_t end = block.cut_below ? 0 : kB;
  for (int64_t tile = 0; tile < kB; tile += kTileRows) {
    while (end < kB && block.first_key[end] < tile + kTileRows) {
      ++end;
    }
    block.query_end[tile / kTileRows] = end;
  }
  return block;
}

/// scores [keys, queries] = left right, where it matters; k items. Between tiles a row is fetched.
template <class Item, class C, class T>
[[gnu::noinline]] void score_product(const Block& block,
                                     int64_t k,
                                     Operand<Item> left,
                                     Operand<Item> right,
                                     RowFetch<T>& fetch,
                                     C* scores) {
  multiply_where(block.k_rows, block.columns, k, left, right, scores, kB,
                 [&block, &fetch](int64_t tile, int64_t column) {
                   fetch.go_on();
                   return block.touches(tile, column);
                 });
}

/// Rounds a span of rows outwards to items of kPerItem rows.
template <int64_t kPerItem>
[[gnu::always_inline]] inline Span in_items(int64_t begin, int64_t end) {
  return {begin / kPerItem, (end + kPerItem - 1) / kPerItem};
}

/// sums [queries, n] += scores^T right, summed over the visible keys.
template <int64_t kPerItem, class Item, class C>
[[gnu::noinline]] void sum_over_keys(const Block& block,
                                     int64_t queries,
                                     int64_t n,
                                     Operand<Item> by_query,
                                     Operand<Item> stacked,
                                     C* sums) {
  multiply_accumulate<true>(queries, n, by_query, stacked, sums, n, [&block](int64_t tile) {
    return in_items<kPerItem>(block.first_key[tile],
                              smaller(tile + kTileRows + block.above, block.k_count));
  });
}

/// sums [keys, n] += scores right, summed over those of the queries from `first`, in whole items,
/// to `queries` that see them.
template <int64_t kPerItem, class Item, class C>
[[gnu::noinline]] void sum_over_queries(const Block& block,
                                        int64_t first,
                                        int64_t queries,
                                        int64_t n,
                                        Operand<Item> by_key,
                                        Operand<Item> stacked,
                                        C* sums) {
  multiply_accumulate<false>(
      block.k_rows, n, by_key, stacked, sums, n, [&block, first, queries](int64_t tile) {
        return in_items<kPerItem>(larger(tile - block.above, first),
                                  smaller(block.query_end[tile / kTileRows], queries));
      });
}

/// Row `query` of the mask of a head, from key `key` on.
inline const bool* mask_row(
    const AttentionMask& mask, int64_t sample, int64_t head, int64_t query, int64_t key) {
  const AttentionStrides& s = mask.strides;
  return mask.data + sample * s.batch + head * s.head + query * s.row + key;
}

/// Whether some of the queries may look at some of `count` keys from `key` on.
[[gnu::noinline]] inline bool lets_through(const AttentionMask& mask,
                                           int64_t sample,
                                           int64_t head,
                                           const Queries& q,
                                           int64_t key,
                                           int64_t count) {
  if (mask.data == nullptr) {
    return true;
  }
  const int64_t rows = mask.strides.row == 0 ? 1 : q.count;
  for (int64_t i = 0; i < rows; ++i) {
    const bool* may_look = mask_row(mask, sample, head, q.begin + i, key);
    int seen = 0;
    for (int64_t j = 0; j < count; ++j) {
      seen |= static_cast<int>(may_look[j]);
    }
    if (seen != 0) {
      return true;
    }
  }
  return false;
}

/// Sets the scores that are not visible to -inf.
template <class C>
[[gnu::noinline]] void hide_scores(const AttentionMask& mask,
                                   int64_t sample,
                                   int64_t head,
                                   const Queries& q,
                                   const Block& block,
                                   C* scores) {
  const C hidden = -static_cast<C>(__builtin_inf());
  for (int64_t j = block.k_count; j < block.k_rows; ++j) {
    for (int64_t i = 0; i < block.columns; ++i) {
      scores[j * kB + i] = hidden;
    }
  }
  const bool cut = block.above < block.k_count - 1 || block.cut_below;
  int64_t to = 0;
  for (int64_t j = 0; j < block.k_count && cut; ++j) {
    C* row = scores + j * kB;
    // Visible are queries `from` to `to` - 1 of the block.
    const int64_t from = smaller(larger(j - block.above, 0), block.columns);
    while (to < block.columns && block.first_key[to] <= j) {
      ++to;
    }
    for (int64_t i = 0; i < from; ++i) {
      row[i] = hidden;
    }
    for (int64_t i = to; i < block.columns; ++i) {
      row[i] = hidden;
    }
  }
  if (mask.data != nullptr && mask.strides.row == 0) {
    const bool* may_look = mask_row(mask, sample, head, 0, block.k_begin);
    for (int64_t j = 0; j < block.k_count; ++j) {
      for (int64_t i = 0; i < block.columns && !may_look[j]; ++i) {
        scores[j * kB + i] = hidden;
      }
    }
  } else if (mask.data != nullptr) {
    for (int64_t i = 0; i < q.count; ++i) {
      const bool* may_look = mask_row(mask, sample, head, q.begin + i, block.k_begin);
      for (int64_t j = 0; j < block.k_count; ++j) {
        C& score = scores[j * kB + i];
        score = may_look[j] ? score : hidden;
      }
    }
  }
}

/// The exponents of the softmax are binary: e^(scale s) = 2^(factor s), factor
/// > 0, of the scores s times `sign`, which only a scale that is not positive
/// makes differ from 1. Scores with a cap are scaled where they are capped.
struct Exponents {
  double factor;
  double sign;
  double scale;  // that is still missing in the scores, without its sign

  /// The score of which e^logit = 2^(factor score).
  double score_of(double logit) const { return logit / scale; }
};
inline Exponents exponents_of(const AttentionShape& s) {
  constexpr double kLog2E = 1.4426950408889634;
  const double scale = s.score_cap > 0 ? 1 : s.scale;
  return {scale == 0 ? 1 : __builtin_fabs(scale) * kLog2E,
          scale > 0   ? 1.0
          : scale < 0 ? -1.0
                      : 0,
          scale == 0 ? 1 / kLog2E : __builtin_fabs(scale)};
}

template <class C>
[[gnu::noinline]] void apply_sign(const Exponents& e, const Block& block, C* scores) {
  if (e.sign == 1) {
    return;
  }
  for (int64_t j = 0; j < block.k_rows; ++j) {
    for (int64_t i = 0; i < block.columns; ++i) {
      scores[j * kB + i] *= static_cast<C>(e.sign);
    }
  }
}

/// scores s -> cap tanh(scale s / cap), and where `derivatives` is not null, 1 - tanh^2 to it.
/// Apart from the other loops over scores, which it would slow down where there is no cap.
template <class C>
[[gnu::noinline]] void cap_scores(const AttentionShape& s,
                                  const Block& block,
                                  C* scores,
                                  C* derivatives) {
  const auto factor = static_cast<C>(s.scale / s.score_cap);
  const auto cap = static_cast<C>(s.score_cap);
  for (int64_t column = 0; column < block.columns; column += kColumns) {
    const Span keys = block.keys_of(column);
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      C* row = scores + j * kB + column;
      C tanhs[kColumns];
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < kColumns; ++i) {
        tanhs[i] = tanh(row[i] * factor);
      }
      if (derivatives != nullptr) {
        TAPESTRY_VECTOR_LOOP
        for (int64_t i = 0; i < kColumns; ++i) {
          derivatives[j * kB + column + i] = 1 - tanhs[i] * tanhs[i];
        }
      }
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < kColumns; ++i) {
        row[i] = tanhs[i] * cap;
      }
    }
  }
}

/// Adds the bias of a head to scores that are yet to be multiplied by `scale`.
template <class C>
[[gnu::noinline]] void add_bias(double scale,
                                const double* slopes,
                                int64_t head,
                                const Queries& q,
                                const Block& block,
                                C* scores) {
  if (slopes == nullptr) {
    return;
  }
  const auto slope = static_cast<C>(slopes[head] / scale);
  for (int64_t j = 0; j < block.k_rows; ++j) {
    const auto distance = static_cast<C>(block.k_begin + j - q.position);
    C* row = scores + j * kB;
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < block.columns; ++i) {
      row[i] += slope * (distance - static_cast<C>(i));
    }
  }
}

/// factors [keys, queries] = 0 or 1 / (1 - p), and 0 beyond the keys and queries that are there.
template <class C>
[[gnu::noinline]] void dropout_factors(const AttentionShape& s,
                                       int64_t sample,
                                       int64_t head,
                                       const Queries& q,
                                       const Block& block,
                                       C* factors) {
  const uint64_t threshold = bernoulli_threshold(1.0 - s.dropout_p);
  const auto kept = static_cast<C>(1.0 / (1.0 - s.dropout_p));
  const bool own_stream = s.sample_streams != nullptr;
  const uint64_t stream = own_stream ? s.sample_streams[sample] : s.rng_stream;
  const int64_t plane =
      (own_stream ? 0 : s.sample_offset + sample) * s.total_heads + s.head_offset + head;
  for (int64_t i = 0; i < kB * kB; ++i) {
    factors[i] = 0;
  }
  uint32_t words[kB + 8];
  for (int64_t i = 0; i < q.count; ++i) {
    const int64_t row = plane * s.total_rows + q.position + i;
    const auto index = static_cast<uint64_t>(row * s.total_cols + block.k_begin);
    const auto skip = static_cast<int64_t>(index % 4);
    philox_blocks(s.rng_seed, stream, index / 4, (skip + block.k_count + 3) / 4, words);
    for (int64_t j = 0; j < block.k_count; ++j) {
      factors[j * kB + i] = words[skip + j] < threshold ? kept : C(0);
    }
  }
}

/// Hands out parts of the working memory, each on its own cache lines.
class Workspace {
 public:
  explicit Workspace(void* memory) : next_(static_cast<char*>(memory)) {}
  template <class Item>
  Item* take(int64_t n) {
    char* out = next_;
    next_ += round_up(n * static_cast<int64_t>(sizeof(Item)), 64);
    return reinterpret_cast<Item*>(out);
  }

 private:
  char* next_;
};

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA

#include "autograd/kernels/attention/cached_attention.h"

#include <type_traits>

#include "autograd/kernels/isa/row_io.h"
#include "autograd/kernels/isa/simd.h"

namespace tapestry::kernels::TAPESTRY_ISA {

namespace {

constexpr int64_t kLane = kLanes<float>;
constexpr float kHidden = -__FLT_MAX__;
constexpr int64_t kKeysAhead = 2 * kLane;  // on their way from memory
constexpr double kLog2E = 1.4426950408889634;

#if defined(__AVX512F__)
constexpr int kRowsTogether = 8;
constexpr int kVectorsTogether = 2;
#else
constexpr int kRowsTogether = 4;
constexpr int kVectorsTogether = 2;
#endif

[[gnu::always_inline]] inline int64_t padded_dim(int64_t dim) { return (dim + 15) / 16 * 16; }
[[gnu::always_inline]] inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/// The sum of the lanes, of both halves, then of their halves, ...
[[gnu::always_inline]] inline float sum_lanes(FloatVector v) {
  float lanes[kLane];
  store(lanes, v);
  for (int64_t half = kLane / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) {
      lanes[i] += lanes[i + half];
    }
  }
  return lanes[0];
}

[[gnu::always_inline]] inline float largest_lane(FloatVector v) {
  float largest = v[0];
  for (int64_t i = 1; i < kLane; ++i) {
    largest = v[i] > largest ? v[i] : largest;
  }
  return largest;
}

/// scores [kRows][kVectors times kLane keys] = q k^T, of rows that are `dim` floats long; each
/// kLane keys are transposed by themselves.
template <int kRows, int kVectors>
[[gnu::noinline]] void dots_with_keys(int64_t dim,
                                      const float* q,
                                      int64_t ldq,
                                      const float* k_transposed,
                                      float* scores,
                                      int64_t ld) {
  FloatVector sums[kRows][kVectors] = {};
  for (int64_t d = 0; d < dim; ++d) {
    FloatVector keys[kVectors];
#pragma GCC unroll 2
    for (int c = 0; c < kVectors; ++c) {
      keys[c] = load(k_transposed + (c * dim + d) * kLane);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const FloatVector own = broadcast(q[r * ldq + d]);
#pragma GCC unroll 2
      for (int c = 0; c < kVectors; ++c) {
        sums[r][c] = multiply_add(own, keys[c], sums[r][c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int c = 0; c < kVectors; ++c) {
      store(scores + r * ld + c * kLane, sums[r][c]);
    }
  }
}

/// out [kRows][dim] = terms [kRows][keys] times values [keys][dim].
template <int kRows>
[[gnu::noinline]] void weighted_values(int64_t keys,
                                       int64_t dim,
                                       const float* terms,
                                       const float* values,
                                       float* out,
                                       int64_t ld_out) {
  const auto some = [&](int64_t d, auto vectors) __attribute__((always_inline)) {
    constexpr int kVectors = decltype(vectors)::value;
    FloatVector sums[kRows][kVectors] = {};
    for (int64_t j = 0; j < keys; ++j) {
      FloatVector v[kVectors];
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) {
        v[c] = load(values + j * dim + d + c * kLane);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const FloatVector term = broadcast(terms[r * kCachedKeys + j]);
#pragma GCC unroll 4
        for (int c = 0; c < kVectors; ++c) {
          sums[r][c] = multiply_add(term, v[c], sums[r][c]);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) {
        store(out + r * ld_out + d + c * kLane, sums[r][c]);
      }
    }
  };
  int64_t d = 0;
  for (; d + kVectorsTogether * kLane <= dim; d += kVectorsTogether * kLane) {
    some(d, std::integral_constant<int, kVectorsTogether>());
  }
  for (; d < dim; d += kLane) {
    some(d, std::integral_constant<int, 1>());
  }
}

/// Neighbouring rows of queries, and the keys of the block that some of them sees: from a whole
/// vector of keys on.
struct RowsAndKeys {
  int64_t row;
  int64_t rows;
  int64_t from;
  int64_t to;
};

template <class T>
class CachedKeyBlock {
 public:
  CachedKeyBlock(const CachedAttention& call, const CachedBlock& block, float* scratch)
      : call_(call),
        block_(block),
        dim_(padded_dim(call.head_dim)),
        value_dim_(padded_dim(call.value_dim)),
        count_(call.counts[block.sample]),
        keys_(least(kCachedKeys, call.positions[block.sample] + count_ - block.first_key)),
        rows_(call.heads / call.groups * call.q_len) {
    q_ = scratch;
    values_ = q_ + rows_ * dim_;
    scores_ = values_ + kCachedKeys * value_dim_;
    wide_ = scores_ + rows_ * kCachedKeys;
    transposed_ = wide_ + 2 * kLane * dim_;
  }

  void run(float* partials) {
    widen_queries();
    // Keys that no query sees, in front of the window, are not read.
    const int64_t position = call_.positions[block_.sample];
    begin_ = 0;
    if (call_.window_left >= 0) {
      const int64_t first = position - call_.window_left - block_.first_key;
      begin_ = first > 0 ? first / kLane * kLane : 0;
      seen_ = first > 0 ? first : 0;
    }
    for (int64_t key = begin_; key < begin_ + kKeysAhead; ++key) {
      fetch(call_.k, call_.head_dim, key);
    }
    for (int64_t key = begin_; key < keys_;) {
      if (key + kLane < keys_) {
        score<2>(key);
        key += 2 * kLane;
      } else {
        score<1>(key);
        key += kLane;
      }
    }
    widen_values();
    const int64_t partial = cached_partial_floats(call_.value_dim);
    for_rows([&](const RowsAndKeys& some, auto count) {
      for (int64_t row = some.row; row < some.row + some.rows; ++row) {
        finish_scores(row, some, partials + row * partial);
      }
      weighted_values<decltype(count)::value>(
          some.to > some.from ? some.to - some.from : 0, value_dim_,
          scores_ + some.row * kCachedKeys + some.from, values_ + some.from * value_dim_,
          partials + some.row * partial + 16, partial);
    });
  }

 private:
  /// Calls f(rows and keys, their number as a constant) for all rows, as many together as can be.
  template <class F>
  void for_rows(const F& f) const {
    for (int64_t row = 0; row < rows_;) {
      const auto call = [&](auto count) {
        f(keys_of(row, decltype(count)::value), count);
        row += decltype(count)::value;
      };
      if (row + kRowsTogether <= rows_) {
        call(std::integral_constant<int, kRowsTogether>());
      } else if (row + 4 <= rows_) {
        call(std::integral_constant<int, 4>());
      } else if (row + 2 <= rows_) {
        call(std::integral_constant<int, 2>());
      } else {
        call(std::integral_constant<int, 1>());
      }
    }
  }

  RowsAndKeys keys_of(int64_t row, int64_t rows) const {
    const int64_t last = row + rows - 1;
    const bool of_one_head = row / call_.q_len == last / call_.q_len;
    const int64_t before = call_.positions[block_.sample] - block_.first_key;
    const int64_t newest = before + (of_one_head ? last % call_.q_len : call_.q_len - 1);
    const int64_t oldest = before + (of_one_head ? row % call_.q_len : 0) - call_.window_left;
    const bool cut = call_.window_left >= 0 && oldest > begin_;
    return {.row = row,
            .rows = rows,
            .from = cut ? oldest / kLane * kLane : begin_,
            .to = least(keys_, newest + 1)};
  }

  const T* key_row(const AttentionInput& x, int64_t key) const {
    int64_t slot = block_.first_key + key;
    if (call_.ring) {
      slot %= call_.capacity;
    }
    return static_cast<const T*>(x.data) + block_.sample * x.strides.batch +
           block_.group * x.strides.head + slot * x.strides.row;
  }

  /// A row on its way into the cache: heads or slots may lie between neighbours, which the
  /// processor does not foresee.
  void fetch(const AttentionInput& x, int64_t dim, int64_t key) const {
    if (key < keys_) {
      const auto* row = reinterpret_cast<const char*>(key_row(x, key));
      for (int64_t byte = 0; byte < dim * static_cast<int64_t>(sizeof(T)); byte += 64) {
        __builtin_prefetch(row + byte);
      }
    }
  }

  static void widen(int64_t dim, const T* from, float* to) {
    load_row(dim, from, to);
    for (int64_t d = dim; d < padded_dim(dim); ++d) {
      to[d] = 0;
    }
  }

  void widen_queries() {
    const int64_t of_group = call_.heads / call_.groups;
    for (int64_t row = 0; row < rows_; ++row) {
      const int64_t head = block_.group * of_group + row / call_.q_len;
      const int64_t i = row % call_.q_len;
      const AttentionStrides& s = call_.q.strides;
      if (i < count_) {
        widen(call_.head_dim,
              static_cast<const T*>(call_.q.data) + block_.sample * s.batch + head * s.head +
                  i * s.row,
              q_ + row * dim_);
      } else {
        for (int64_t d = 0; d < dim_; ++d) {
          q_[row * dim_ + d] = 0;
        }
      }
    }
  }

  void widen_values() {
    for (int64_t key = begin_; key < keys_; ++key) {
      float* to = values_ + key * value_dim_;
      if (key >= seen_) {
        widen(call_.value_dim, key_row(call_.v, key), to);
      } else {
        for (int64_t d = 0; d < value_dim_; ++d) {
          to[d] = 0;
        }
      }
    }
  }

  template <int kVectors>
  void score(int64_t key) {
    for (int64_t j = 0; j < kVectors * kLane; ++j) {
      fetch(call_.k, call_.head_dim, key + kKeysAhead + j);
      fetch(call_.v, call_.value_dim, key + j);  // while there is something else to do
      float* to = wide_ + j * dim_;
      if (key + j < keys_ && key + j >= seen_) {
        widen(call_.head_dim, key_row(call_.k, key + j), to);
      } else {
        for (int64_t d = 0; d < dim_; ++d) {
          to[d] = 0;
        }
      }
    }
    for (int c = 0; c < kVectors; ++c) {
      transpose(kLane, dim_, wide_ + c * kLane * dim_, dim_, transposed_ + c * kLane * dim_, kLane);
    }
    for_rows([&](const RowsAndKeys& some, auto count) {
      if (key < some.to && key + kVectors * kLane > some.from) {
        dots_with_keys<decltype(count)::value, kVectors>(
            dim_, q_ + some.row * dim_, dim_, transposed_, scores_ + some.row * kCachedKeys + key,
            kCachedKeys);
      }
    });
  }

  void cap_scores(const RowsAndKeys& some, float* scores) const {
    const auto factor = static_cast<float>(call_.scale / call_.score_cap);
    const auto cap = static_cast<float>(call_.score_cap);
    for (int64_t j = some.from; j < some.to; j += kLane) {
      TAPESTRY_VECTOR_LOOP
      for (int64_t l = 0; l < kLane; ++l) {
        scores[j + l] = cap * tanh(scores[j + l] * factor);
      }
    }
  }

  /// Scores of a row, one of `some`, -> terms, with what is added to them; and their maximum and
  /// sum.
  void finish_scores(int64_t row, const RowsAndKeys& some, float* partial) const {
    const int64_t position = call_.positions[block_.sample] + row % call_.q_len;
    const int64_t last = position - block_.first_key;
    const int64_t first = call_.window_left < 0 ? 0 : last - call_.window_left;  // may be negative
    const int64_t head = block_.group * (call_.heads / call_.groups) + row / call_.q_len;
    const bool capped = call_.score_cap > 0;
    const auto factor = static_cast<float>((capped ? 1 : call_.scale) * kLog2E);
    const float slope =
        call_.slopes == nullptr ? 0 : static_cast<float>(call_.slopes[head] * kLog2E);
    float* scores = scores_ + row * kCachedKeys;
    if (capped) {
      cap_scores(some, scores);
    }
    FloatVector largest = broadcast(kHidden);
    for (int64_t j = some.from; j < some.to; j += kLane) {
      float lanes[kLane];
      TAPESTRY_VECTOR_LOOP
      for (int64_t l = 0; l < kLane; ++l) {
        const auto distance = static_cast<int32_t>(j + l - last);
        const float score = scores[j + l] * factor + slope * static_cast<float>(distance);
        lanes[l] = j + l <= last && j + l >= first ? score : kHidden;
      }
      store(scores + j, load(lanes));
      largest = larger_of(load(lanes), largest);
    }
    const float max = largest_lane(largest);
    FloatVector sum = {};
    if (max == kHidden) {
      for (int64_t j = some.from; j < some.to; j += kLane) {
        store(scores + j, FloatVector{});
      }
    } else {
      for (int64_t j = some.from; j < some.to; j += kLane) {
        const FloatVector term = exp2(load(scores + j) - broadcast(max));
        store(scores + j, term);
        sum += term;
      }
    }
    partial[0] = max;
    partial[1] = sum_lanes(sum);
  }

  const CachedAttention& call_;
  const CachedBlock& block_;
  const int64_t dim_;  // padded, and so are the values'
  const int64_t value_dim_;
  const int64_t count_;
  const int64_t keys_;  // of the block, that lie in the cache
  const int64_t rows_;  // the queries of the group
  int64_t begin_ = 0;   // of the block, a whole vector of keys
  int64_t seen_ = 0;    // the first that some query sees
  float* q_;
  float* values_;
  float* scores_;
  float* wide_;
  float* transposed_;
};

}  // namespace

int64_t cached_attention_scratch(const CachedAttention& call) {
  const int64_t dim = padded_dim(call.head_dim);
  const int64_t rows = call.heads / call.groups * call.q_len;
  return rows * dim + kCachedKeys * padded_dim(call.value_dim) + rows * kCachedKeys +
         4 * kLane * dim;
}

void cached_attention_block(const CachedAttention& call,
                            const CachedBlock& block,
                            float* partials,
                            float* scratch) {
  if (call.dtype == kBFloat16) {
    CachedKeyBlock<BFloat16>(call, block, scratch).run(partials);
  } else {
    CachedKeyBlock<float>(call, block, scratch).run(partials);
  }
}

void cached_attention_merge(const CachedAttention& call,
                            int64_t sample,
                            int64_t head,
                            int64_t i,
                            int64_t blocks,
                            const float* partials,
                            int64_t stride) {
  const double logit = call.sinks == nullptr ? -__builtin_inf() : call.sinks[head];
  const auto sink = static_cast<float>(logit * kLog2E);
  const bool has_sink = !(sink <= kHidden);  // NaN stays NaN
  float max = has_sink ? sink : kHidden;
  for (int64_t block = 0; block < blocks; ++block) {
    const float own = partials[block * stride];
    max = own > max ? own : max;
  }
  const AttentionStrides& s = call.out.strides;
  const int64_t at = sample * s.batch + head * s.head + i * s.row;
  constexpr int64_t kPart = 64;
  float sum = has_sink ? exp2(broadcast(sink - max))[0] : 0;
  for (int64_t block = 0; block < blocks; ++block) {
    const float* partial = partials + block * stride;
    if (partial[1] > 0) {
      sum = multiply_add(partial[1], exp2(broadcast(partial[0] - max))[0], sum);
    }
  }
  for (int64_t d = 0; d < call.value_dim; d += kPart) {
    const int64_t count = least(kPart, call.value_dim - d);
    float out[kPart] = {};
    for (int64_t block = 0; block < blocks; ++block) {
      const float* partial = partials + block * stride;
      if (partial[1] > 0) {
        const float factor = exp2(broadcast(partial[0] - max))[0];
        TAPESTRY_VECTOR_LOOP
        for (int64_t c = 0; c < count; ++c) {
          out[c] += factor * partial[16 + d + c];
        }
      }
    }
    TAPESTRY_VECTOR_LOOP
    for (int64_t c = 0; c < count; ++c) {
      out[c] /= sum;
    }
    if (call.dtype == kBFloat16) {
      store_row(count, out, static_cast<BFloat16*>(call.out.data) + at + d);
    } else {
      store_row(count, out, static_cast<float*>(call.out.data) + at + d);
    }
  }
}

}  // namespace tapestry::kernels::TAPESTRY_ISA

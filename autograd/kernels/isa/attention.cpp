// Scores are kept transposed, [keys, queries]: so K lies as the left factor of a product wants it,
// the statistics of the queries are vectors, and only a block of Q has to be transposed, once for
// all its keys (and takes the scale of the scores on the way).
#include "autograd/kernels/attention.h"

#include <type_traits>

#include "autograd/kernels/isa/attention_call.h"
#include "autograd/kernels/isa/matrix_tile.h"
#include "autograd/kernels/isa/row_io.h"
#include "autograd/kernels/philox.h"

namespace tapestry::kernels::TAPESTRY_ISA {

void philox_blocks(
    uint64_t seed, uint64_t stream, uint64_t first_block, int64_t count, uint32_t* words);
void attention_forward_block(DType dtype,
                             const AttentionCall& call,
                             int64_t sample,
                             int64_t head,
                             int64_t q_begin,
                             void* scratch);
void attention_backward_part(DType dtype,
                             const AttentionCall& call,
                             const AttentionPart& part,
                             void* scratch);

namespace {

constexpr int64_t kB = kAttentionBlock;

[[gnu::always_inline]] inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
[[gnu::always_inline]] inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
[[gnu::always_inline]] inline int64_t round_up(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

template <class T>
[[gnu::always_inline]] inline T* at(void* x, const AttentionStrides& s, int64_t b, int64_t h) {
  return static_cast<T*>(x) + b * s.batch + h * s.head;
}
template <class T>
[[gnu::always_inline]] inline const T* at(const void* x,
                                          const AttentionStrides& s,
                                          int64_t b,
                                          int64_t h) {
  return static_cast<const T*>(x) + b * s.batch + h * s.head;
}

/// A matrix in the compute type.
template <class C>
struct Matrix {
  const C* data;
  int64_t ld;
};

/// `rows` rows of n elements: as they lie if they are of the compute type and `direct`, else
/// copied, with zeros up to kB rows of `padded` elements.
template <class T, class C = compute_t<T>>
Matrix<C> rows_as_compute(
    const T* x, int64_t stride, int64_t rows, int64_t n, int64_t padded, bool direct, C* buffer) {
  if constexpr (kSame<T, C>) {
    if (direct) {
      return {x, stride};
    }
  }
  for (int64_t i = 0; i < kB; ++i) {
    C* row = buffer + i * padded;
    const int64_t used = i < rows ? n : 0;
    if (used > 0) {
      load_row(n, x + i * stride, row);
    }
    for (int64_t d = used; d < padded; ++d) {
      row[d] = 0;
    }
  }
  return {buffer, padded};
}

/// out[d, i] = factor x[i, d]; columns from `rows` on are 0.
template <class T, class C = compute_t<T>>
void transpose_rows(const T* x, int64_t stride, int64_t rows, int64_t n, C factor, C* out) {
  C block[kBlock];
  for (int64_t i = 0; i < kB; ++i) {
    for (int64_t done = 0; done < n; done += kBlock) {
      const int64_t m = block_size(n - done);
      const C* row = block;
      if (i < rows) {
        row = read_block(m, x + i * stride + done, block);
      }
      for (int64_t d = 0; d < m; ++d) {
        out[(done + d) * kB + i] = i < rows ? row[d] * factor : C(0);
      }
    }
  }
}

/// A block of queries: the first one, how many, and that number in whole tiles.
struct Queries {
  int64_t begin;
  int64_t count;
  int64_t columns;
};

template <class C>
Queries queries_from(int64_t begin, int64_t q_len) {
  const int64_t count = smaller(kB, q_len - begin);
  return {begin, count, round_up(count, kTileColumns<C>)};
}

struct Keys {
  int64_t begin;
  int64_t end;
};

/// The keys that some query of the block sees, but for the mask; empty if begin >= end.
Keys visible_keys(const AttentionShape& s, const Queries& q) {
  const int64_t first = q.begin + s.q_offset;
  const int64_t last = first + q.count - 1;
  return {s.window_left >= 0 ? larger(first - s.window_left, 0) : 0,
          s.causal ? smaller(last + 1, s.kv_len) : s.kv_len};
}

/// Sets the scores [keys, queries] that are not visible to -inf.
template <class C>
void hide_scores(const AttentionShape& s,
                 const bool* mask,
                 const Queries& q,
                 int64_t k_begin,
                 int64_t k_count,
                 C* scores) {
  const C hidden = -static_cast<C>(__builtin_inf());
  const int64_t first = q.begin + s.q_offset;
  const bool diagonal = s.causal && k_begin + k_count - 1 > first;
  const bool window = s.window_left >= 0 && k_begin < first + q.count - 1 - s.window_left;
  for (int64_t j = 0; j < k_count && (diagonal || window); ++j) {
    const int64_t key = k_begin + j;
    C* row = scores + j * kB;
    // Visible are queries `from` to `to` - 1 of the block.
    const int64_t from = s.causal ? smaller(larger(key - first, 0), q.count) : 0;
    const int64_t to =
        s.window_left >= 0 ? smaller(key + s.window_left - first + 1, q.count) : q.count;
    for (int64_t i = 0; i < from; ++i) {
      row[i] = hidden;
    }
    for (int64_t i = larger(to, 0); i < q.count; ++i) {
      row[i] = hidden;
    }
  }
  if (mask != nullptr) {
    for (int64_t i = 0; i < q.count; ++i) {
      const bool* may_look = mask + (q.begin + i) * s.kv_len + k_begin;
      for (int64_t j = 0; j < k_count; ++j) {
        C& score = scores[j * kB + i];
        score = may_look[j] ? score : hidden;
      }
    }
  }
}

/// factors [keys, queries] = 0 or 1 / (1 - p).
template <class C>
void dropout_factors(const AttentionShape& s,
                     int64_t sample,
                     int64_t head,
                     const Queries& q,
                     int64_t k_begin,
                     int64_t k_count,
                     C* factors) {
  const uint64_t threshold = bernoulli_threshold(1.0 - s.dropout_p);
  const auto kept = static_cast<C>(1.0 / (1.0 - s.dropout_p));
  const bool own_stream = s.sample_streams != nullptr;
  const uint64_t stream = own_stream ? s.sample_streams[sample] : s.rng_stream;
  const int64_t plane =
      (own_stream ? 0 : s.sample_offset + sample) * s.total_heads + s.head_offset + head;
  uint32_t words[kB + 8];
  for (int64_t i = 0; i < q.count; ++i) {
    const int64_t row = plane * s.total_rows + s.q_offset + q.begin + i;
    const auto index = static_cast<uint64_t>(row * s.total_cols + k_begin);
    const auto skip = static_cast<int64_t>(index % 4);
    philox_blocks(s.rng_seed, stream, index / 4, (skip + k_count + 3) / 4, words);
    for (int64_t j = 0; j < k_count; ++j) {
      factors[j * kB + i] = words[skip + j] < threshold ? kept : C(0);
    }
  }
}

/// Hands out parts of the working memory.
template <class C>
struct Arena {
  C* next;
  C* take(int64_t n) {
    C* out = next;
    next += n;
    return out;
  }
};

/// Maximum and sum of each query so far, and what the older terms are multiplied by.
template <class C>
struct Statistics {
  C* max;
  C* sum;
  C* rescale;
};

/// scores -> e^(score - max), with max and sum brought up to date. True if some older term
/// has to be rescaled.
template <class C>
bool online_softmax(int64_t k_count, int64_t columns, C* scores, const Statistics<C>& stat) {
  const C none = -static_cast<C>(__builtin_inf());
  C block_max[kB];
  C partial[kB];
  for (int64_t i = 0; i < columns; ++i) {
    block_max[i] = none;
    partial[i] = 0;
  }
  for (int64_t j = 0; j < k_count; ++j) {
    const C* row = scores + j * kB;
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < columns; ++i) {
      block_max[i] = row[i] > block_max[i] ? row[i] : block_max[i];
    }
  }
  bool changed = false;
  for (int64_t i = 0; i < columns; ++i) {
    const C max = block_max[i] > stat.max[i] ? block_max[i] : stat.max[i];
    changed = changed || max != stat.max[i];
    block_max[i] = max == none ? C(0) : max;  // the shift; e^(-inf - 0) is 0
    stat.rescale[i] = fast_exp(stat.max[i] - block_max[i]);
    stat.max[i] = max;
  }
  for (int64_t j = 0; j < k_count; ++j) {
    C* row = scores + j * kB;
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < columns; ++i) {
      const C e = fast_exp(row[i] - block_max[i]);
      row[i] = e;
      partial[i] += e;
    }
  }
  for (int64_t i = 0; i < columns; ++i) {
    stat.sum[i] = stat.sum[i] * stat.rescale[i] + partial[i];
  }
  return changed;
}

template <class T>
void forward_block(
    const AttentionCall& call, int64_t sample, int64_t head, int64_t q_begin, void* scratch) {
  using C = compute_t<T>;
  const AttentionShape& s = call.shape;
  const int64_t dim = s.head_dim;
  const int64_t padded = attention_padded(dim);
  const int64_t group = head / (s.heads / s.groups);
  const Queries q = queries_from<C>(q_begin, s.q_len);
  const T* k = at<T>(call.k, call.k_strides, sample, group);
  const T* v = at<T>(call.v, call.v_strides, sample, group);

  Arena<C> arena{static_cast<C*>(scratch)};
  C* q_transposed = arena.take(kB * padded);
  C* k_buffer = arena.take(kB * padded);
  C* v_buffer = arena.take(kB * padded);
  C* sums = arena.take(kB * padded);
  C* scores = arena.take(kB * kB);
  C* factors = arena.take(kB * kB);
  const Statistics<C> stat{arena.take(kB), arena.take(kB), arena.take(kB)};

  transpose_rows(at<T>(call.q, call.q_strides, sample, head) + q_begin * call.q_strides.row,
                 call.q_strides.row, q.count, dim, static_cast<C>(s.scale), q_transposed);
  for (int64_t i = 0; i < kB; ++i) {
    stat.max[i] = -static_cast<C>(__builtin_inf());
    stat.sum[i] = 0;
  }
  for (int64_t i = 0; i < kB * padded; ++i) {
    sums[i] = 0;
  }

  const Keys keys = visible_keys(s, q);
  for (int64_t k_begin = keys.begin / kB * kB; k_begin < keys.end; k_begin += kB) {
    const int64_t k_count = smaller(kB, s.kv_len - k_begin);
    const Matrix<C> key_rows =
        rows_as_compute(k + k_begin * call.k_strides.row, call.k_strides.row, k_count, dim, padded,
                        k_count % kTileRows == 0, k_buffer);
    multiply_small<false>(k_count, q.columns, dim, key_rows.data, key_rows.ld, q_transposed, kB,
                          false, scores, kB);
    hide_scores(s, call.mask, q, k_begin, k_count, scores);
    const bool rescale = online_softmax(k_count, q.columns, scores, stat);
    if (s.dropout_p > 0) {
      dropout_factors(s, sample, head, q, k_begin, k_count, factors);
      for (int64_t j = 0; j < k_count; ++j) {
        TAPESTRY_VECTOR_LOOP
        for (int64_t i = 0; i < q.count; ++i) {
          scores[j * kB + i] *= factors[j * kB + i];
        }
      }
    }
    if (rescale) {
      for (int64_t i = 0; i < q.count; ++i) {
        const C factor = stat.rescale[i];
        C* row = sums + i * padded;
        TAPESTRY_VECTOR_LOOP
        for (int64_t d = 0; d < padded; ++d) {
          row[d] *= factor;
        }
      }
    }
    const Matrix<C> value_rows =
        rows_as_compute(v + k_begin * call.v_strides.row, call.v_strides.row, k_count, dim, padded,
                        dim == padded, v_buffer);
    multiply_small<true>(q.count, padded, k_count, scores, kB, value_rows.data, value_rows.ld, true,
                         sums, padded);
  }

  T* out = at<T>(call.forward_out, call.out_strides, sample, head);
  C* lse = static_cast<C*>(call.lse) + (sample * s.heads + head) * s.q_len + q_begin;
  for (int64_t i = 0; i < q.count; ++i) {
    const C sum = stat.sum[i];
    const C inverse = sum == 0 ? C(0) : C(1) / sum;
    C* row = sums + i * padded;
    TAPESTRY_VECTOR_LOOP
    for (int64_t d = 0; d < dim; ++d) {
      row[d] *= inverse;
    }
    store_row(dim, row, out + (q_begin + i) * call.out_strides.row);
    lse[i] = sum == 0 ? -static_cast<C>(__builtin_inf())
                      : static_cast<C>(stat.max[i] + __builtin_log(static_cast<double>(sum)));
  }
}

/// What a part of the backward pass keeps for one block of queries.
template <class C>
struct QueryBlock {
  C* q_transposed;     // [dim, kB]
  C* dout_transposed;  // [dim, kB]
  Matrix<C> q;
  Matrix<C> dout;
  C* lse;
  C* delta;
  C* dq;  // [kB, padded]
};

/// delta_i = dout_i . out_i. A query without a visible key gets lse = +inf: its probabilities
/// e^(score - lse) become 0. `scratch` has room for a block of transposed rows.
///
/// The sum runs over d in the order and with the rounding of dout v^T. So a query with one visible
/// key, where out is that key's value, has delta = dout . v to the bit, and the gradient of its
/// score, which is 0, does not come out as the rounding of large numbers.
template <class T, class C = compute_t<T>>
void load_row_constants(const AttentionCall& call,
                        int64_t sample,
                        int64_t head,
                        const Queries& q,
                        const QueryBlock<C>& block,
                        C* scratch) {
  const AttentionShape& s = call.shape;
  const C* lse = static_cast<const C*>(call.lse) + (sample * s.heads + head) * s.q_len + q.begin;
  for (int64_t i = 0; i < kB; ++i) {
    const bool hidden = i < q.count && lse[i] == -static_cast<C>(__builtin_inf());
    block.lse[i] = i >= q.count ? 0 : hidden ? -lse[i] : lse[i];
  }
  const T* out = at<T>(call.out, call.out_strides, sample, head) + q.begin * call.out_strides.row;
  transpose_rows(out, call.out_strides.row, q.count, s.head_dim, C(1), scratch);
  using S = Simd<C>;
  for (int64_t i = 0; i < kB; i += kLanes<C>) {
    typename S::V sum = S::set(0);
    for (int64_t d = 0; d < s.head_dim; ++d) {
      sum = S::multiply_add(S::load(scratch + d * kB + i),
                            S::load(block.dout_transposed + d * kB + i), sum);
    }
    S::store(block.delta + i, sum);
  }
}

template <class T, class C = compute_t<T>>
void store_rows(int64_t rows, int64_t n, const C* in, int64_t padded, T* out, int64_t stride) {
  for (int64_t i = 0; i < rows; ++i) {
    store_row(n, in + i * padded, out + i * stride);
  }
}

template <class T>
void backward_part(const AttentionCall& call, const AttentionPart& part, void* scratch) {
  using C = compute_t<T>;
  const AttentionShape& s = call.shape;
  const int64_t dim = s.head_dim;
  const int64_t padded = attention_padded(dim);
  const auto scale = static_cast<C>(s.scale);
  const T* k = at<T>(call.k, call.k_strides, part.sample, part.group);
  const T* v = at<T>(call.v, call.v_strides, part.sample, part.group);
  const int64_t k_rows = round_up(part.k_end - part.k_begin, kB);

  Arena<C> arena{static_cast<C*>(scratch)};
  QueryBlock<C> block{};
  block.q_transposed = arena.take(kB * padded);
  block.dout_transposed = arena.take(kB * padded);
  C* q_buffer = arena.take(kB * padded);
  C* dout_buffer = arena.take(kB * padded);
  C* k_buffer = arena.take(kB * padded);
  C* v_buffer = arena.take(kB * padded);
  block.dq = arena.take(kB * padded);
  C* probabilities = arena.take(kB * kB);
  C* dscores = arena.take(kB * kB);
  C* factors = arena.take(kB * kB);
  block.lse = arena.take(kB);
  block.delta = arena.take(kB);
  C* dk = arena.take(part.want_dkv ? k_rows * padded : 0);
  C* dv = arena.take(part.want_dkv ? k_rows * padded : 0);
  for (int64_t i = 0; part.want_dkv && i < k_rows * padded; ++i) {
    dk[i] = 0;
    dv[i] = 0;
  }

  for (int64_t head = part.head_begin; head < part.head_end; ++head) {
    for (int64_t q_begin = part.q_begin; q_begin < part.q_end; q_begin += kB) {
      const Queries q = queries_from<C>(q_begin, s.q_len);
      Keys keys = visible_keys(s, q);
      keys = {larger(keys.begin, part.k_begin), smaller(keys.end, part.k_end)};
      if (!part.want_dq && keys.begin >= keys.end) {
        continue;
      }
      const T* q_rows =
          at<T>(call.q, call.q_strides, part.sample, head) + q_begin * call.q_strides.row;
      const T* dout_rows =
          at<T>(call.dout, call.dout_strides, part.sample, head) + q_begin * call.dout_strides.row;
      transpose_rows(q_rows, call.q_strides.row, q.count, dim, scale, block.q_transposed);
      transpose_rows(dout_rows, call.dout_strides.row, q.count, dim, C(1), block.dout_transposed);
      block.q = rows_as_compute(q_rows, call.q_strides.row, q.count, dim, padded, dim == padded,
                                q_buffer);
      block.dout = rows_as_compute(dout_rows, call.dout_strides.row, q.count, dim, padded,
                                   dim == padded, dout_buffer);
      load_row_constants<T>(call, part.sample, head, q, block, k_buffer);
      for (int64_t i = 0; i < kB * padded; ++i) {
        block.dq[i] = 0;
      }

      for (int64_t k_begin = keys.begin / kB * kB; k_begin < keys.end; k_begin += kB) {
        const int64_t k_count = smaller(kB, s.kv_len - k_begin);
        const bool whole = k_count % kTileRows == 0;
        const Matrix<C> key_rows =
            rows_as_compute(k + k_begin * call.k_strides.row, call.k_strides.row, k_count, dim,
                            padded, whole && dim == padded, k_buffer);
        const Matrix<C> value_rows =
            rows_as_compute(v + k_begin * call.v_strides.row, call.v_strides.row, k_count, dim,
                            padded, whole, v_buffer);
        multiply_small<false>(k_count, q.columns, dim, key_rows.data, key_rows.ld,
                              block.q_transposed, kB, false, probabilities, kB);
        hide_scores(s, call.mask, q, k_begin, k_count, probabilities);
        multiply_small<false>(k_count, q.columns, dim, value_rows.data, value_rows.ld,
                              block.dout_transposed, kB, false, dscores, kB);
        if (s.dropout_p > 0) {
          dropout_factors(s, part.sample, head, q, k_begin, k_count, factors);
        }
        for (int64_t j = 0; j < k_count; ++j) {
          C* p = probabilities + j * kB;
          C* ds = dscores + j * kB;
          if (s.dropout_p > 0) {
            const C* factor = factors + j * kB;
            TAPESTRY_VECTOR_LOOP
            for (int64_t i = 0; i < q.count; ++i) {
              const C e = fast_exp(p[i] - block.lse[i]);
              ds[i] = scale * e * (ds[i] * factor[i] - block.delta[i]);
              p[i] = e * factor[i];
            }
          } else {
            TAPESTRY_VECTOR_LOOP
            for (int64_t i = 0; i < q.count; ++i) {
              const C e = fast_exp(p[i] - block.lse[i]);
              ds[i] = scale * e * (ds[i] - block.delta[i]);
              p[i] = e;
            }
          }
        }
        if (part.want_dkv) {
          const int64_t offset = (k_begin - part.k_begin) * padded;
          multiply_small<false>(k_count, padded, q.count, probabilities, kB, block.dout.data,
                                block.dout.ld, true, dv + offset, padded);
          multiply_small<false>(k_count, padded, q.count, dscores, kB, block.q.data, block.q.ld,
                                true, dk + offset, padded);
        }
        if (part.want_dq) {
          multiply_small<true>(q.count, padded, k_count, dscores, kB, key_rows.data, key_rows.ld,
                               true, block.dq, padded);
        }
      }
      if (part.want_dq) {
        store_rows(
            q.count, dim, block.dq, padded,
            at<T>(call.dq, call.dq_strides, part.sample, head) + q_begin * call.dq_strides.row,
            call.dq_strides.row);
      }
    }
  }
  if (part.want_dkv) {
    const int64_t rows = part.k_end - part.k_begin;
    store_rows(rows, dim, dk, padded,
               at<T>(call.dk, call.dk_strides, part.sample, part.group) +
                   part.k_begin * call.dk_strides.row,
               call.dk_strides.row);
    store_rows(rows, dim, dv, padded,
               at<T>(call.dv, call.dv_strides, part.sample, part.group) +
                   part.k_begin * call.dv_strides.row,
               call.dv_strides.row);
  }
}

}  // namespace

void attention_forward_block(DType dtype,
                             const AttentionCall& call,
                             int64_t sample,
                             int64_t head,
                             int64_t q_begin,
                             void* scratch) {
  for_floating(dtype, [&](auto* tag) {
    forward_block<std::remove_pointer_t<decltype(tag)>>(call, sample, head, q_begin, scratch);
  });
}

void attention_backward_part(DType dtype,
                             const AttentionCall& call,
                             const AttentionPart& part,
                             void* scratch) {
  for_floating(dtype, [&](auto* tag) {
    backward_part<std::remove_pointer_t<decltype(tag)>>(call, part, scratch);
  });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA

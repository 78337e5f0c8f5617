#include <type_traits>

#include "autograd/kernels/attention/attention.h"
#include "autograd/kernels/isa/attention_block.h"
#include "autograd/kernels/isa/vector_math.h"

namespace tapestry::kernels::TAPESTRY_ISA {

void attention_forward_rows(const AttentionForward& call, const AttentionRows& rows, void* scratch);

namespace {

/// What is kept for a block of queries while the keys go by. The terms of both
/// sums are 2^(factor (score - max)) with the maximum so far.
template <class Item, class C>
struct QueryBlock {
  Queries queries;
  const int32_t* starts;
  Keys keys;
  Operand<Item> q_transposed;
  C* sums;  // [kB, padded values]: terms times values
  C* max;
  C* sum;   // of the terms
  C* seen;  // the largest score without a sink; null: nobody asks
};

/// Turns scores into terms, with max and sum brought up to date; `by_query` gets them as an
/// operand, times `kept` (null: 1), and may be the scores. `rescale` is what older terms are to be
/// multiplied by. The term of the maximum is 1 to the bit: one visible key gives its value.
template <class O, class Item, class C>
[[gnu::noinline]] void online_softmax(const Block& block,
                                      C factor,
                                      const C* scores,
                                      const C* kept,
                                      const QueryBlock<Item, C>& q,
                                      Item* by_query,
                                      C* rescale) {
  constexpr int64_t kL = kLanes<C>;
  using V = vector_t<C>;
  const V factors = broadcast(factor);
  for (int64_t i = 0; i < block.columns; i += kL) {
    const Span keys = block.keys_of(i);
    V largest[4];
    for (V& m : largest) {
      m = broadcast(-static_cast<C>(__builtin_inf()));
    }
    for (int64_t j = keys.begin; j < keys.end; j += 4) {
#pragma GCC unroll 4
      for (int64_t r = 0; r < 4; ++r) {
        largest[r] = larger_of(largest[r], load(scores + (j + r) * kB + i));
      }
    }
    const V before = load(q.max + i);
    const V found = larger_of(larger_of(largest[0], largest[1]), larger_of(largest[2], largest[3]));
    const V max = larger_of(before, found);
    if (q.seen != nullptr) {
      store(q.seen + i, larger_of(load(q.seen + i), found));
    }
    const V older = exp2((before - max) * factors);
    V partial[2] = {};
    for (int64_t j = keys.begin; j < keys.end; j += 4) {
#pragma GCC unroll 2
      for (int64_t r = 0; r < 4; r += 2) {
        const int64_t at = (j + r) * kB + i;
        V first = exp2((load(scores + at) - max) * factors);
        V second = exp2((load(scores + at + kB) - max) * factors);
        partial[0] += first;
        partial[1] += second;
        if (kept != nullptr) {
          first = first * load(kept + at);
          second = second * load(kept + at + kB);
        }
        O::put_by_query(first, second, j + r, i, by_query);
      }
    }
    store(q.max + i, max);
    store(q.sum + i, multiply_add(load(q.sum + i), older, partial[0] + partial[1]));
    store(rescale + i, older);
  }
}

template <class C>
void rescale_rows(int64_t rows, int64_t n, const C* factors, C* sums) {
  for (int64_t i = 0; i < rows; ++i) {
    if (factors[i] != 1) {
      for (int64_t d = 0; d < n; d += kLanes<C>) {
        store(sums + i * n + d, load(sums + i * n + d) * factors[i]);
      }
    }
  }
}

template <class T>
class ForwardRows {
  using O = operands_for<T>;
  using C = typename O::C;
  using Item = typename O::Item;

 public:
  ForwardRows(const AttentionForward& call, const AttentionRows& rows, void* scratch)
      : call_(call), s_(call.shape), rows_(rows), exponents_(exponents_of(s_)) {
    Workspace workspace(scratch);
    k_buffer_ = workspace.take<Item>(kB * round_up(dim_, 32));
    v_buffer_ = workspace.take<Item>(kB * round_up(value_dim_, 32));
    v_stacked_ = workspace.take<Item>(kB * round_up(value_dim_, 32));
    scores_ = workspace.take<C>(kB * kB);
    factors_ = workspace.take<C>(kB * kB);
    if constexpr (kSame<Item, C>) {
      terms_ = scores_;
    } else {
      terms_ = workspace.take<Item>(kB * kB / O::kPerItem);
    }
    rescale_ = workspace.take<C>(kB);
    for (int64_t begin = rows.q_begin; begin < rows.q_end; begin += kB) {
      start(workspace, queries_from(begin, s_.q_len, s_.q_offset));
    }
  }

  void run() {
    Keys keys{s_.kv_len, 0};
    for (int64_t n = 0; n < count_; ++n) {
      keys = {smaller(keys.begin, blocks_[n].keys.begin), larger(keys.end, blocks_[n].keys.end)};
    }
    for (int64_t k_begin = round_down(keys.begin, kB); k_begin < keys.end; k_begin += kB) {
      visit(k_begin, keys.end);
    }
    for (int64_t n = 0; n < count_; ++n) {
      finish(blocks_[n]);
    }
    if (rows_.max_score != nullptr) {
      *rows_.max_score = largest_score();
    }
  }

 private:
  void start(Workspace& workspace, const Queries& q) {
    QueryBlock<Item, C>& block = blocks_[count_++];
    block.queries = q;
    block.starts = starts_of(call_.documents, rows_.sample, q);
    block.keys = visible_keys(s_, block.starts, q);
    const T* x = at<T>(call_.q, rows_.sample, rows_.head, q.begin);
    block.q_transposed =
        O::transposed(O::rows(x, call_.q.strides.row, q.count, dim_, true, k_buffer_), dim_,
                      workspace.take<Item>(kB * round_up(dim_, 32)));
    block.sums = workspace.take<C>(kB * padded_);
    block.max = workspace.take<C>(kB);
    block.sum = workspace.take<C>(kB);
    for (int64_t i = 0; i < kB * padded_; ++i) {
      block.sums[i] = 0;
    }
    // Finite: a difference of two infinities would be NaN.
    C max = sizeof(C) == 8 ? static_cast<C>(-__DBL_MAX__) : static_cast<C>(-__FLT_MAX__);
    C sum = 0;
    if (call_.sinks != nullptr) {
      const double score = exponents_.score_of(call_.sinks[rows_.head]);
      if (!(score <= max)) {  // the sink is the first term, and NaN stays NaN
        max = static_cast<C>(score);
        sum = 1;
      }
    }
    for (int64_t i = 0; i < kB; ++i) {
      block.max[i] = max;
      block.sum[i] = sum;
    }
    if (rows_.max_score != nullptr) {
      block.seen = workspace.take<C>(kB);
      for (int64_t i = 0; i < kB; ++i) {
        block.seen[i] = -static_cast<C>(__builtin_inf());
      }
    }
  }

  /// A block of keys and values meets the queries that see it.
  void visit(int64_t k_begin, int64_t k_end) {
    const int64_t k_count = smaller(kB, s_.kv_len - k_begin);
    bool met = false;
    bool meets[kAttentionBlocks] = {};
    for (int64_t n = 0; n < count_; ++n) {
      const QueryBlock<Item, C>& q = blocks_[n];
      meets[n] = k_begin < q.keys.end && k_begin + kB > q.keys.begin &&
                 lets_through(call_.mask, rows_.sample, rows_.head, q.queries, k_begin, k_count);
      met = met || meets[n];
    }
    if (!met) {
      return;
    }
    const int64_t group = rows_.head / (s_.heads / s_.groups);
    const T* k = at<T>(call_.k, rows_.sample, group, k_begin);
    const T* v = at<T>(call_.v, rows_.sample, group, k_begin);
    const bool once = count_ == 1;  // a copy would not be used again
    const Operand<Item> key_rows = O::rows(k, call_.k.strides.row, k_count, dim_, once, k_buffer_);
    const Operand<Item> values = O::stacked(
        O::rows(v, call_.v.strides.row, k_count, value_dim_, once || !O::kSameForm, v_buffer_),
        value_dim_, v_stacked_);
    const int64_t rest = larger(smaller(kB, k_end - k_begin - kB), 0);
    RowFetch<T> next_keys{k + kB * call_.k.strides.row, call_.k.strides.row, rest, dim_};
    RowFetch<T> next_values{v + kB * call_.v.strides.row, call_.v.strides.row, rest, value_dim_};
    for (int64_t n = 0; n < count_; ++n) {
      if (meets[n]) {
        RowFetch<T>& fetch = next_keys.rows > 0 ? next_keys : next_values;
        add(blocks_[n], k_begin, k_count, key_rows, values, fetch);
      }
    }
  }

  void add(const QueryBlock<Item, C>& q,
           int64_t k_begin,
           int64_t k_count,
           Operand<Item> key_rows,
           Operand<Item> values,
           RowFetch<T>& fetch) {
    const Block block = block_of(s_, q.starts, q.queries, k_begin, k_count);
    score_product(block, (dim_ + O::kPerItem - 1) / O::kPerItem, key_rows, q.q_transposed, fetch,
                  scores_);
    if (s_.score_cap > 0) {
      cap_scores<C>(s_, block, scores_, nullptr);
    }
    apply_sign(exponents_, block, scores_);
    add_bias(exponents_.scale, call_.slopes, rows_.head, q.queries, block, scores_);
    hide_scores(call_.mask, rows_.sample, rows_.head, q.queries, block, scores_);
    const bool drops = s_.dropout_p > 0;
    if (drops) {
      dropout_factors(s_, rows_.sample, rows_.head, q.queries, block, factors_);
    }
    online_softmax<O>(block, static_cast<C>(exponents_.factor), scores_, drops ? factors_ : nullptr,
                      q, terms_, rescale_);
    rescale_rows(q.queries.count, padded_, rescale_, q.sums);
    sum_over_keys<O::kPerItem>(block, q.queries.count, padded_, {terms_, kB}, values, q.sums);
  }

  void finish(const QueryBlock<Item, C>& q) {
    const auto scale = static_cast<C>(exponents_.scale);
    T* out = at<T>(call_.out, rows_.sample, rows_.head, q.queries.begin);
    C* lse = static_cast<C*>(call_.lse) + (rows_.sample * s_.heads + rows_.head) * s_.q_len +
             q.queries.begin;
    C row_lse[kB];
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < kB; ++i) {
      const C finite = q.max[i] * scale + log(q.sum[i]);
      row_lse[i] = q.sum[i] == 0 ? -static_cast<C>(__builtin_inf()) : finite;
      rescale_[i] = q.sum[i] == 0 ? C(0) : C(1) / q.sum[i];
    }
    for (int64_t i = 0; i < q.queries.count; ++i) {
      lse[i] = row_lse[i];
      O::store_scaled(value_dim_, rescale_[i], q.sums + i * padded_,
                      out + i * call_.out.strides.row);
    }
  }

  float largest_score() const {
    C largest = -static_cast<C>(__builtin_inf());
    for (int64_t n = 0; n < count_; ++n) {
      for (int64_t i = 0; i < blocks_[n].queries.count; ++i) {
        const C seen = blocks_[n].seen[i];
        largest = seen > largest ? seen : largest;
      }
    }
    return static_cast<float>(largest * static_cast<C>(exponents_.scale));
  }

  const AttentionForward& call_;
  const AttentionShape& s_;
  const AttentionRows& rows_;
  const Exponents exponents_;
  const int64_t dim_ = s_.head_dim;
  const int64_t value_dim_ = s_.value_dim;
  const int64_t padded_ = attention_padded(value_dim_);  // of values
  Item* k_buffer_;
  Item* v_buffer_;
  Item* v_stacked_;
  C* scores_;
  C* factors_;
  Item* terms_;  // by query
  C* rescale_;
  QueryBlock<Item, C> blocks_[kAttentionBlocks] = {};
  int64_t count_ = 0;
};

}  // namespace

void attention_forward_rows(const AttentionForward& call,
                            const AttentionRows& rows,
                            void* scratch) {
#if defined(TAPESTRY_PAIRS)
  ForwardRows<BFloat16>(call, rows, scratch).run();
#else
  for_floating(call.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    ForwardRows<T>(call, rows, scratch).run();
  });
#endif
}

}  // namespace tapestry::kernels::TAPESTRY_ISA

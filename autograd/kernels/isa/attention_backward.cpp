#include <type_traits>

#include "autograd/kernels/attention/attention.h"
#include "autograd/kernels/isa/attention_block.h"
#include "autograd/kernels/machine/exact.h"

namespace tapestry::kernels::TAPESTRY_ISA {

void attention_backward_part(const AttentionBackward& call,
                             const AttentionPart& part,
                             void* scratch);

namespace {

/// What is kept for a block of queries while the keys go by.
template <class Item, class C>
struct QueryBlock {
  Queries queries;
  const int32_t* starts;
  Keys keys;
  int64_t head;
  Operand<Item> q_transposed;
  Operand<Item> q_stacked;
  Operand<Item> dout_transposed;
  Operand<Item> dout_stacked;
  C* shift;  // the probabilities are 2^(factor score - shift)
  C* delta;
  C* dq;  // [kB, padded]
};

/// The scores of a block, or what becomes of them, and of their gradients.
template <class Item, class C>
struct Scores {
  C* p;
  C* ds;
  const C* factors;      // of dropout; null: 1
  const C* derivatives;  // of the cap; null: 1
  // As operands, which may be p and ds.
  Item* p_by_key;
  Item* ds_by_key;
  Item* ds_by_query;
};

/// Turns scores into probabilities p times the factors, and ds into p (ds factors - delta) times
/// the derivatives, both as operands.
template <class O, class Item, class C>
[[gnu::noinline]] void softmax_backward(const Block& block,
                                        C factor,
                                        const QueryBlock<Item, C>& q,
                                        const Scores<Item, C>& scores) {
  constexpr int64_t kL = kLanes<C>;
  constexpr int64_t kN = O::kNeighbours;
  using V = vector_t<C>;
  const V exponent = broadcast(factor);
  for (int64_t i = 0; i < block.columns; i += kN * kL) {
    // Of neighbouring units that differ in keys, what is made of scores that are not there is not
    // read.
    const Span keys = {block.keys_of(i).begin, block.keys_of(i + (kN - 1) * kL).end};
    V shift[kN];
    V delta[kN];
    for (int64_t v = 0; v < kN; ++v) {
      shift[v] = -load(q.shift + i + v * kL);
      delta[v] = load(q.delta + i + v * kL);
    }
    for (int64_t j = keys.begin; j < keys.end; j += 2) {
      V ds[2][kN];
#pragma GCC unroll 2
      for (int64_t r = 0; r < 2; ++r) {
        V p[kN];
#pragma GCC unroll 2
        for (int64_t v = 0; v < kN; ++v) {
          const int64_t at = (j + r) * kB + i + v * kL;
          p[v] = exp2(multiply_add(load(scores.p + at), exponent, shift[v]));
          if (scores.factors != nullptr) {
            const V kept = load(scores.factors + at);
            ds[r][v] = p[v] * multiply_add(load(scores.ds + at), kept, -delta[v]);
            p[v] = p[v] * kept;
          } else {
            ds[r][v] = p[v] * (load(scores.ds + at) - delta[v]);
          }
          if (scores.derivatives != nullptr) {
            ds[r][v] = ds[r][v] * load(scores.derivatives + at);
          }
        }
        O::put_by_key(p, j + r, i, scores.p_by_key);
        O::put_by_key(ds[r], j + r, i, scores.ds_by_key);
      }
      for (int64_t v = 0; v < kN && !O::kSameForm; ++v) {
        O::put_by_query(ds[0][v], ds[1][v], j, i + v * kL, scores.ds_by_query);
      }
    }
  }
}

template <class T>
class BackwardPart {
  using O = operands_for<T>;
  using C = typename O::C;
  using Item = typename O::Item;

 public:
  BackwardPart(const AttentionBackward& call, const AttentionPart& part, void* scratch)
      : call_(call),
        s_(call.shape),
        part_(part),
        exponents_(exponents_of(s_)),
        workspace_(scratch),
        room_(scratch) {
    const int64_t widest = larger(dim_, value_dim_);
    left_rows_ = workspace_.take<Item>(operand_size(widest));
    right_rows_ = workspace_.take<Item>(operand_size(widest));
    k_stacked_ = workspace_.take<Item>(operand_size(dim_));
    scores_ = workspace_.take<C>(kB * kB);
    dscores_ = workspace_.take<C>(kB * kB);
    factors_ = workspace_.take<C>(kB * kB);
    if constexpr (kSame<Item, C>) {
      p_by_key_ = scores_;
      ds_by_key_ = dscores_;
      ds_by_query_ = dscores_;
    } else {
      p_by_key_ = workspace_.take<Item>(kB * kB / O::kPerItem);
      ds_by_key_ = workspace_.take<Item>(kB * kB / O::kPerItem);
      ds_by_query_ = workspace_.take<Item>(kB * kB / O::kPerItem);
    }
    if (part.want_dkv) {
      const int64_t keys = round_up(part.k_end - part.k_begin, kB);
      const int64_t count = call.leaves.count > 0 ? sets_.sums() : 1;
      for (int64_t n = 0; n < count; ++n) {
        sums_[n].dk = workspace_.take<C>(keys * padded_);
        sums_[n].dv = workspace_.take<C>(keys * value_padded_);
      }
    }
    if (s_.score_cap > 0) {
      derivatives_ = workspace_.take<C>(kB * kB);
    }
  }

  void run() {
    if (call_.leaves.count > 0 && part_.want_dkv) {
      add_leaves();
    } else {
      clear(sums_[0]);
      for (int64_t head = part_.head_begin; head < part_.head_end; ++head) {
        add_range(head, part_.q_begin, part_.q_end);
        meet_keys();
      }
    }
    if (part_.want_dkv) {
      finish_keys(call_.scale_dk ? static_cast<C>(s_.scale) : C(1), dim_, sums_[0].dk, call_.dk);
      finish_keys(C(1), value_dim_, sums_[0].dv, call_.dv);
    }
  }

 private:
  static constexpr int64_t kMostSums = kSumLeaves;  // AttentionLeafSets::sums() is at most leaves

  static int64_t operand_size(int64_t dim) { return kB * round_up(dim, 32); }

  /// Sums of the part's keys.
  struct KeySums {
    C* dk = nullptr;
    C* dv = nullptr;
    int64_t used = 0;  // keys that have terms; those behind are zeros, and not written at first
  };

  /// Makes room for the terms of keys before `end`.
  void extend(KeySums& sums, int64_t end) const {
    if (end > sums.used) {
      fill_zeros(sums.dk + sums.used * padded_, (end - sums.used) * padded_);
      fill_zeros(sums.dv + sums.used * value_padded_, (end - sums.used) * value_padded_);
      sums.used = end;
    }
  }
  static void fill_zeros(C* x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      x[i] = 0;
    }
  }
  void clear(KeySums& sums) const {
    if (part_.want_dkv) {
      sums.used = 0;
      extend(sums, part_.k_end - part_.k_begin);
    }
  }

  /// dk and dv as a tree over the leaves: of a set of them each has its sums, then these are added,
  /// and those of sets as digits of a binary counter carry.
  void add_leaves() {
    const int64_t together = sets_.together;
    const int64_t queries = sets_.chunk * together;
    for (int64_t set = 0; set < sets_.sets(); ++set) {
      for (int64_t n = 0; n < together; ++n) {
        sums_[n].used = 0;
      }
      for (int64_t head = part_.head_begin; head < part_.head_end; ++head) {
        if (sets_.leaves == 1) {  // chunks one behind the other
          add_range(head, 0, s_.q_len);
          continue;
        }
        add_range(head, set * queries, (set + 1) * queries);
        add_range(head, s_.q_len - (set + 1) * queries, s_.q_len - set * queries);
      }
      meet_keys();
      for (int64_t step = 1; step < together; step *= 2) {
        for (int64_t n = 0; n < together; n += 2 * step) {
          merge(sums_[n + step], sums_[n]);
        }
      }
      KeySums* digit = sums_ + together;
      for (int64_t rest = set; rest % 2 == 1; rest /= 2) {
        merge(*digit++, sums_[0]);
      }
      if (set + 1 < sets_.sets()) {
        const KeySums done = sums_[0];
        sums_[0] = *digit;
        *digit = done;
      }
    }
    extend(sums_[0], part_.k_end - part_.k_begin);
  }

  /// `sums` += other, whose memory may change.
  void merge(KeySums& other, KeySums& sums) const {
    if (other.used > sums.used) {
      const KeySums longer = other;
      other = sums;
      sums = longer;
    }
    add_vectors(other.used * padded_, other.dk, sums.dk);
    add_vectors(other.used * value_padded_, other.dv, sums.dv);
  }
  static void add_vectors(int64_t n, const C* in, C* out) {
    for (int64_t i = 0; i < n; i += kLanes<C>) {
      store(out + i, load(out + i) + load(in + i));
    }
  }

  /// The position of a query less its number.
  int64_t offset_of(int64_t query) const {
    return s_.q_offset +
           (call_.leaves.count > 0 && query >= s_.q_len / 2 ? call_.leaves.late_shift : 0);
  }

  /// Takes the blocks of these queries in, which meet the keys as soon as there are enough.
  void add_range(int64_t head, int64_t q_begin, int64_t q_end) {
    for (int64_t begin = q_begin; begin < q_end;) {
      const int64_t half = s_.q_len / 2;
      const bool jumps = call_.leaves.count > 0 && begin < half;
      const Queries queries =
          queries_from(begin, jumps ? smaller(half, q_end) : q_end, offset_of(begin));
      begin += queries.count;
      const int32_t* starts = starts_of(call_.documents, part_.sample, queries);
      Keys keys = visible_keys(s_, starts, queries);
      keys = {larger(keys.begin, part_.k_begin), smaller(keys.end, part_.k_end)};
      if (!part_.want_dq && keys.begin >= keys.end) {
        continue;
      }
      if (count_ == 0) {
        room_ = workspace_;
        all_ = {part_.k_end, part_.k_begin};
      }
      blocks_[count_].starts = starts;
      load_queries(room_, head, queries, keys, blocks_[count_++]);
      if (keys.begin < keys.end) {
        all_ = {smaller(all_.begin, keys.begin), larger(all_.end, keys.end)};
      }
      if (count_ == kAttentionBlocks) {
        meet_keys();
      }
    }
  }

  /// The blocks that were taken in meet their keys and are done.
  void meet_keys() {
    const int64_t skipped = all_.begin < all_.end ? round_down(all_.begin - part_.k_begin, kB) : 0;
    for (int64_t k_begin = part_.k_begin + skipped; count_ > 0 && k_begin < all_.end;
         k_begin += kB) {
      visit(k_begin, count_);
    }
    for (int64_t n = 0; n < count_ && part_.want_dq; ++n) {
      const Queries& queries = blocks_[n].queries;
      store_rows(queries.count, static_cast<C>(s_.scale), dim_, blocks_[n].dq,
                 at<T>(call_.dq, part_.sample, blocks_[n].head, queries.begin),
                 call_.dq.strides.row);
    }
    count_ = 0;
  }

  Operand<Item> query_rows(const AttentionInput& x,
                           int64_t head,
                           const Queries& q,
                           int64_t dim,
                           bool direct,
                           Item* buffer) {
    return O::rows(at<T>(x, part_.sample, head, q.begin), x.strides.row, q.count, dim, direct,
                   buffer);
  }

  void load_queries(Workspace& workspace,
                    int64_t head,
                    const Queries& q,
                    const Keys& keys,
                    QueryBlock<Item, C>& block) {
    block.queries = q;
    block.keys = keys;
    block.head = head;
    // Where rows and stacked are the same, the rows are kept and the buffer for
    // stacked ones unused.
    Item* q_buffer = workspace.take<Item>(operand_size(dim_));
    Item* dout_buffer = workspace.take<Item>(operand_size(value_dim_));
    constexpr bool kSameForm = O::kSameForm;
    const Operand<Item> q_rows =
        query_rows(call_.q, head, q, dim_, !kSameForm, kSameForm ? q_buffer : left_rows_);
    block.q_stacked = O::stacked(q_rows, dim_, q_buffer);
    block.q_transposed = O::transposed(q_rows, dim_, workspace.take<Item>(operand_size(dim_)));
    const Operand<Item> dout_rows = query_rows(call_.dout, head, q, value_dim_, !kSameForm,
                                               kSameForm ? dout_buffer : left_rows_);
    block.dout_stacked = O::stacked(dout_rows, value_dim_, dout_buffer);
    block.dout_transposed =
        O::transposed(dout_rows, value_dim_, workspace.take<Item>(operand_size(value_dim_)));
    block.shift = workspace.take<C>(kB);
    block.delta = workspace.take<C>(kB);
    block.dq = workspace.take<C>(kB * padded_);
    load_row_constants(block);
    for (int64_t i = 0; i < kB * padded_; ++i) {
      block.dq[i] = 0;
    }
  }

  /// delta_i = dout_i . out_i, and the shifts. A query without a visible key
  /// gets the shift +inf: its probabilities become 0.
  ///
  /// The sum of delta runs over d in the order and with the rounding of dout
  /// v^T. So a query with one visible key, where out is that key's value, has
  /// delta = dout . v to the bit, and the gradient of its score, which is 0,
  /// does not come out as the rounding of large numbers.
  void load_row_constants(const QueryBlock<Item, C>& block) {
    constexpr double kLog2E = 1.4426950408889634;
    const Queries& q = block.queries;
    const C* lse = static_cast<const C*>(call_.lse) +
                   (part_.sample * s_.heads + block.head) * s_.q_len + q.begin;
    for (int64_t i = 0; i < kB; ++i) {
      const bool hidden = i < q.count && lse[i] == -static_cast<C>(__builtin_inf());
      block.shift[i] = i >= q.count ? C(0) : hidden ? -lse[i] : lse[i] * static_cast<C>(kLog2E);
    }
    const Operand<Item> rows = query_rows(call_.out, block.head, q, value_dim_, true, left_rows_);
    const Operand<Item> out = O::transposed(rows, value_dim_, right_rows_);
    using P = Product<Item>;
    const int64_t items = (value_dim_ + O::kPerItem - 1) / O::kPerItem;
    for (int64_t i = 0; i < kB; i += kLanes<C>) {
      vector_t<C> sum = {};
      for (int64_t d = 0; d < items; ++d) {
        sum = P::add(P::row(out.data + d * kB + i), P::row(block.dout_transposed.data + d * kB + i),
                     sum);
      }
      store(block.delta + i, sum);
    }
    if (call_.delta != nullptr && part_.want_dq) {  // each query is once in such a part
      C* delta = static_cast<C*>(call_.delta) + (part_.sample * s_.heads + block.head) * s_.q_len +
                 q.begin;
      for (int64_t i = 0; i < q.count; ++i) {
        delta[i] = block.delta[i];
      }
    }
  }

  /// A block of keys and values meets the queries that see it. Meanwhile the next one is fetched.
  void visit(int64_t k_begin, int64_t count) {
    const int64_t k_count = smaller(kB, part_.k_end - k_begin);
    bool met = false;
    bool meets[kAttentionBlocks] = {};
    for (int64_t n = 0; n < count; ++n) {
      const QueryBlock<Item, C>& q = blocks_[n];
      meets[n] = k_begin < q.keys.end && k_begin + kB > q.keys.begin &&
                 lets_through(call_.mask, part_.sample, q.head, q.queries, k_begin, k_count);
      met = met || meets[n];
    }
    if (!met) {
      return;
    }
    const bool once = count == 1;  // a copy would not be used again
    const T* k = at<T>(call_.k, part_.sample, part_.group, k_begin);
    const T* v = at<T>(call_.v, part_.sample, part_.group, k_begin);
    const Operand<Item> key_rows = O::rows(k, call_.k.strides.row, k_count, dim_, once, left_rows_);
    const Operand<Item> value_rows =
        O::rows(v, call_.v.strides.row, k_count, value_dim_, once, right_rows_);
    const Operand<Item> keys_stacked =
        part_.want_dq ? O::stacked(key_rows, dim_, k_stacked_) : Operand<Item>{};
    const int64_t rest = larger(smaller(kB, all_.end - k_begin - kB), 0);
    RowFetch<T> next_keys{k + kB * call_.k.strides.row, call_.k.strides.row, rest, dim_};
    RowFetch<T> next_values{v + kB * call_.v.strides.row, call_.v.strides.row, rest, value_dim_};
    for (int64_t n = 0; n < count; ++n) {
      if (meets[n]) {
        const Block block = block_of(s_, blocks_[n].starts, blocks_[n].queries, k_begin, k_count);
        make_scores(blocks_[n], block, key_rows, next_keys, value_rows, next_values);
        add(blocks_[n], block, keys_stacked);
      }
    }
  }

  void make_scores(const QueryBlock<Item, C>& q,
                   const Block& block,
                   Operand<Item> key_rows,
                   RowFetch<T>& next_keys,
                   Operand<Item> value_rows,
                   RowFetch<T>& next_values) {
    const int64_t items = (dim_ + O::kPerItem - 1) / O::kPerItem;
    const int64_t value_items = (value_dim_ + O::kPerItem - 1) / O::kPerItem;
    score_product(block, items, key_rows, q.q_transposed, next_keys, scores_);
    if (s_.score_cap > 0) {
      cap_scores(s_, block, scores_, derivatives_);
    }
    apply_sign(exponents_, block, scores_);
    add_bias(exponents_.scale, call_.slopes, q.head, q.queries, block, scores_);
    hide_scores(call_.mask, part_.sample, q.head, q.queries, block, scores_);
    score_product(block, value_items, value_rows, q.dout_transposed, next_values, dscores_);
    const bool drops = s_.dropout_p > 0;
    if (drops) {
      dropout_factors(s_, part_.sample, q.head, q.queries, block, factors_);
    }
    softmax_backward<O>(block, static_cast<C>(exponents_.factor), q,
                        Scores<Item, C>{.p = scores_,
                                        .ds = dscores_,
                                        .factors = drops ? factors_ : nullptr,
                                        .derivatives = derivatives_,
                                        .p_by_key = p_by_key_,
                                        .ds_by_key = ds_by_key_,
                                        .ds_by_query = ds_by_query_});
  }

  void add(const QueryBlock<Item, C>& q, const Block& block, Operand<Item> keys_stacked) {
    if (part_.want_dkv) {
      add_to_keys(q, block);
    }
    if (part_.want_dq) {
      sum_over_keys<O::kPerItem>(block, q.queries.count, padded_, {ds_by_query_, kB}, keys_stacked,
                                 q.dq);
    }
  }

  void add_to_keys(const QueryBlock<Item, C>& q, const Block& block) {
    const int64_t first = block.k_begin - part_.k_begin;
    const Operand<Item> p = {p_by_key_, kB / O::kPerItem};
    const Operand<Item> ds = {ds_by_key_, kB / O::kPerItem};
    const auto add = [&](int64_t begin, int64_t end, const KeySums& sums) {
      sum_over_queries<O::kPerItem>(block, begin, end, value_padded_, p, q.dout_stacked,
                                    sums.dv + first * value_padded_);
      sum_over_queries<O::kPerItem>(block, begin, end, padded_, ds, q.q_stacked,
                                    sums.dk + first * padded_);
    };
    if (call_.leaves.count <= 1) {
      extend(sums_[0], first + block.k_rows);
      add(0, q.queries.count, sums_[0]);
      return;
    }
    const int64_t chunks = 2 * sets_.leaves;
    for (int64_t begin = 0; begin < q.queries.count;) {
      const int64_t chunk = (q.queries.begin + begin) / sets_.chunk;
      const int64_t end = smaller((chunk + 1) * sets_.chunk - q.queries.begin, q.queries.count);
      KeySums& sums = sums_[smaller(chunk, chunks - 1 - chunk) % sets_.together];
      extend(sums, first + block.k_rows);
      add(begin, end, sums);
      begin = end;
    }
  }

  [[gnu::noinline]] void store_rows(
      int64_t rows, C factor, int64_t dim, C* in, T* out, int64_t stride) const {
    for (int64_t i = 0; i < rows; ++i) {
      O::store_scaled(dim, factor, in + i * attention_padded(dim), out + i * stride);
    }
  }

  /// Hands over the sums of this part's keys.
  void finish_keys(C factor, int64_t dim, C* sums, const AttentionOutput& out) const {
    const int64_t rows = part_.k_end - part_.k_begin;
    if (call_.add_dkv) {
      add_rows(rows, factor, dim, sums, at<C>(out, part_.sample, part_.group, part_.k_begin),
               out.strides.row);
    } else {
      store_rows(rows, factor, dim, sums, at<T>(out, part_.sample, part_.group, part_.k_begin),
                 out.strides.row);
    }
  }

  void add_rows(int64_t rows, C factor, int64_t dim, const C* in, C* out, int64_t stride) const {
    for (int64_t i = 0; i < rows; ++i) {
      TAPESTRY_VECTOR_LOOP
      for (int64_t d = 0; d < dim; ++d) {
        out[i * stride + d] += in[i * attention_padded(dim) + d] * factor;
      }
    }
  }

  const AttentionBackward& call_;
  const AttentionShape& s_;
  const AttentionPart& part_;
  const Exponents exponents_;
  const int64_t dim_ = s_.head_dim;
  const int64_t value_dim_ = s_.value_dim;
  const int64_t padded_ = attention_padded(dim_);
  const int64_t value_padded_ = attention_padded(value_dim_);
  Workspace workspace_;
  Item* left_rows_;
  Item* right_rows_;
  Item* k_stacked_;
  C* scores_;
  C* dscores_;
  C* factors_;
  Item* p_by_key_;
  Item* ds_by_key_;
  Item* ds_by_query_;
  C* derivatives_ = nullptr;  // of the cap
  const AttentionLeafSets sets_ = attention_leaf_sets(call_.leaves, s_.q_len);
  KeySums sums_[kMostSums] = {};
  QueryBlock<Item, C> blocks_[kAttentionBlocks] = {};  // that are taken in
  int64_t count_ = 0;                                  // of them
  Keys all_{0, 0};                                     // that they see
  Workspace room_;                                     // behind what is kept for them
};

}  // namespace

void attention_backward_part(const AttentionBackward& call,
                             const AttentionPart& part,
                             void* scratch) {
#if defined(TAPESTRY_PAIRS)
  BackwardPart<BFloat16>(call, part, scratch).run();
#else
  for_floating(call.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    BackwardPart<T>(call, part, scratch).run();
  });
#endif
}

}  // namespace tapestry::kernels::TAPESTRY_ISA

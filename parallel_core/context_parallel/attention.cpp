#include "parallel_core/context_parallel/attention.h"

#include <array>
#include <utility>

#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/rows.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/transformer/attention_passes.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

constexpr std::string_view kName = "context_parallel_attention";

// Groups of heads that are gathered and computed together: several segments, so that one is
// communicated while another is computed, but few, so that messages stay large.
int64_t segments_of(int64_t groups) {
  constexpr int64_t kMost = 4;
  int64_t segments = std::min(kMost, groups);
  while (groups % segments != 0) {
    --segments;
  }
  return segments;
}

// Those of a half of the queries; a mask of keys alone has one for all.
Tensor rows_of_mask(const Tensor& mask, int half, int64_t chunk) {
  return mask.size(2) == 1 ? mask : mask.slice(2, half * chunk, (half + 1) * chunk);
}

// Sizes of a call, and its cut into segments of heads and halves of the rank's queries.
struct Plan {
  Plan(const Tensor& q, const Tensor& k, const Tensor& v, const ContextParallelLayout& layout_)
      : layout(layout_),
        batch(k.size(0)),
        segments(segments_of(k.size(1))),
        groups(k.size(1) / segments),
        heads(q.size(1) / segments),
        chunk(q.size(2) / 2),
        dim(k.size(3)),
        value_dim(v.size(3)) {}

  const ContextParallelLayout& layout;
  int64_t batch;
  int64_t segments;
  int64_t groups;  // of a segment, and so are the heads
  int64_t heads;
  int64_t chunk;
  int64_t dim;
  int64_t value_dim;

  /// Numbers of a segment's keys and values, of so many positions.
  int64_t numbers(int64_t positions) const {
    return batch * groups * positions * (dim + value_dim);
  }
  int64_t length() const { return layout.chunks() * chunk; }
  /// A segment of queries, or of what belongs to them, and of these one half.
  Tensor queries(const Tensor& x, int64_t segment, int half) const {
    return x.slice(1, segment * heads, (segment + 1) * heads)
        .slice(2, half * chunk, (half + 1) * chunk);
  }
  Tensor queries(const Tensor& x, int64_t segment) const {
    return x.slice(1, segment * heads, (segment + 1) * heads);
  }
  Tensor keys(const Tensor& x, int64_t segment) const {
    return x.slice(1, segment * groups, (segment + 1) * groups);
  }
  /// Of one number for each head, those of a segment.
  Tensor heads_of(const Tensor& x, int64_t segment) const {
    return x.defined() ? x.slice(0, segment * heads, (segment + 1) * heads) : x;
  }
  Tensor logsumexp(const Tensor& lse, int64_t segment, int half) const {
    return lse.select(0, segment).select(0, half);
  }
  Tensor logsumexp_of_both(const Tensor& lse, int64_t segment) const {
    return cat({logsumexp(lse, segment, 0), logsumexp(lse, segment, 1)}, 2);
  }
  /// Of exact mode, for both halves in one call.
  kernels::AttentionLeaves leaves() const {
    kernels::AttentionLeaves out = attention_leaves(2 * chunk);
    out.late_shift =
        (layout.chunk_of(layout.rank, 1) - layout.chunk_of(layout.rank, 0) - 1) * chunk;
    return out;
  }
  /// Keys that a half of the queries can see.
  int64_t visible(int half, bool causal) const {
    return causal ? (layout.chunk_of(layout.rank, half) + 1) * chunk : length();
  }

  AttentionOptions options_of(const AttentionOptions& whole,
                              const Tensor& mask,
                              const Tensor& starts,
                              const Tensor& sinks,
                              int64_t segment,
                              int half) const {
    AttentionOptions options = whole;
    options.q_offset = layout.chunk_of(layout.rank, half) * chunk;
    options.document_starts = starts;
    options.sinks = heads_of(sinks, segment);
    options.max_logits = heads_of(whole.max_logits, segment);
    if (mask.defined()) {
      options.mask = rows_of_mask(mask, half, chunk).slice(3, 0, visible(half, whole.causal));
    }
    if (!whole.alibi_slopes.empty()) {
      const auto first = whole.alibi_slopes.begin() + segment * heads;
      options.alibi_slopes.assign(first, first + heads);
    }
    if (whole.dropout_p > 0) {
      options.dropout_place.start[1] += segment * heads;
      options.dropout_place.start[2] = options.q_offset;
    }
    return options;
  }
  /// Those of the first half with the mask of both.
  AttentionOptions options_of_both(const AttentionOptions& whole,
                                   const Tensor& mask,
                                   const Tensor& starts,
                                   const Tensor& sinks,
                                   int64_t segment) const {
    AttentionOptions options = options_of(whole, {}, starts, sinks, segment, 0);
    if (mask.defined()) {
      options.mask = mask.slice(3, 0, visible(1, whole.causal));
    }
    return options;
  }
};

// Keys [B, groups, n, D] and values [B, groups, n, E] of a segment, one after the other in a flat
// tensor: what goes between ranks.
struct KeysAndValues {
  KeysAndValues(const Plan& plan, const Tensor& flat)
      : k(flat.slice(0, 0, flat.numel() / (plan.dim + plan.value_dim) * plan.dim)
              .view({plan.batch, plan.groups, -1, plan.dim})),
        v(flat.slice(0, k.numel(), flat.numel())
              .view({plan.batch, plan.groups, -1, plan.value_dim})) {}

  Tensor k;
  Tensor v;

  /// Those of the positions [begin, end).
  KeysAndValues positions(int64_t begin, int64_t end) const {
    return {k.slice(2, begin, end), v.slice(2, begin, end)};
  }

 private:
  KeysAndValues(Tensor keys, Tensor values) : k(std::move(keys)), v(std::move(values)) {}
};

void copy(const KeysAndValues& from, const KeysAndValues& to) {
  copy_values(from.k, to.k);
  copy_values(from.v, to.v);
}

// Keys and values of a segment on their way from all ranks.
class GatheredKeys {
 public:
  GatheredKeys(const Plan& plan, const Tensor& k, const Tensor& v, int64_t segment) : plan_(&plan) {
    const Tensor packed = empty({plan.numbers(2 * plan.chunk)}, k.dtype());
    const KeysAndValues own(plan, packed);
    copy_values(plan.keys(k, segment), own.k);
    copy_values(plan.keys(v, segment), own.v);
    by_rank_ = empty({plan.layout.size, packed.numel()}, k.dtype());
    work_ = plan.layout.group->all_gather_async(by_rank_, packed);
  }

  /// Waits, and returns them in the order of the sequence. To be called once.
  KeysAndValues wait() {
    work_->wait();
    const KeysAndValues out(*plan_, empty({plan_->numbers(plan_->length())}, by_rank_.dtype()));
    for (int owner = 0; owner < plan_->layout.size; ++owner) {
      for (const int half : {0, 1}) {
        const int64_t to = plan_->layout.chunk_of(owner, half) * plan_->chunk;
        copy(KeysAndValues(*plan_, by_rank_.select(0, owner))
                 .positions(half * plan_->chunk, (half + 1) * plan_->chunk),
             out.positions(to, to + plan_->chunk));
      }
    }
    by_rank_ = {};
    return out;
  }

 private:
  const Plan* plan_;
  Tensor by_rank_;
  WorkHandle work_;
};

// Gradients of a segment's keys and values on their way to their ranks.
class ScatteredGradients {
 public:
  ScatteredGradients() = default;
  /// `sums` in the order of the sequence: this rank's share.
  ScatteredGradients(const Plan& plan, const KeysAndValues& sums, int64_t segment)
      : plan_(&plan), segment_(segment) {
    const int64_t own = plan.numbers(2 * plan.chunk);
    const Tensor by_rank = empty({plan.layout.size, own}, sums.k.dtype());
    for (int owner = 0; owner < plan.layout.size; ++owner) {
      for (const int half : {0, 1}) {
        const int64_t from = plan.layout.chunk_of(owner, half) * plan.chunk;
        copy(sums.positions(from, from + plan.chunk),
             KeysAndValues(plan, by_rank.select(0, owner))
                 .positions(half * plan.chunk, (half + 1) * plan.chunk));
      }
    }
    own_ = empty({own}, sums.k.dtype());
    work_ = plan.layout.group->reduce_scatter_async(own_, by_rank);
  }

  /// Waits, and writes the segment's part of dk, times `k_factor`, and dv. Nothing if none is under
  /// way.
  void finish(const Tensor& dk, const Tensor& dv, double k_factor) {
    if (work_ == nullptr) {
      return;
    }
    std::exchange(work_, nullptr)->wait();
    const KeysAndValues own(*plan_, own_);
    copy_values(k_factor == 1 ? own.k : mul(own.k, k_factor), plan_->keys(dk, segment_));
    copy_values(own.v, plan_->keys(dv, segment_));
    own_ = {};
  }

 private:
  const Plan* plan_ = nullptr;
  int64_t segment_ = 0;
  Tensor own_;
  WorkHandle work_;
};

// Calls f(segment, keys and values of all ranks), with the next ones under way.
template <class F>
void for_each_segment(const Plan& plan, const Tensor& k, const Tensor& v, const F& f) {
  std::optional<GatheredKeys> next(std::in_place, plan, k, v, 0);
  for (int64_t segment = 0; segment < plan.segments; ++segment) {
    GatheredKeys current = *std::exchange(next, std::nullopt);
    if (segment + 1 < plan.segments) {
      next.emplace(plan, k, v, segment + 1);
    }
    f(segment, current.wait());
  }
}

// A tensor [B, H, S, D] that lies in memory as [B, S, H, D], as attention's results do.
Tensor empty_by_rows(const Tensor& like, int64_t dim) {
  const Shape& s = like.shape();
  return empty({s[0], s[2], s[1], dim}, like.dtype()).permute({0, 2, 1, 3});
}

struct ContextParallelAttention {
  static constexpr OpName name = kName;
  AttentionOptions options;  // without mask, documents and sinks
  ContextParallelLayout layout;
  SavedTensor q, k, v, mask, starts, sinks, out, lse;

  Tensor forward(const Tensor& q_,
                 const Tensor& k_,
                 const Tensor& v_,
                 const Tensor& mask_,
                 const Tensor& starts_,
                 const Tensor& sinks_) {
    q.save(q_);
    k.save(k_);
    v.save(v_);
    mask.save(mask_);
    starts.save(starts_);
    sinks.save(sinks_);
    const Plan plan(q_, k_, v_, layout);
    const Tensor y = empty_by_rows(q_, plan.value_dim);
    const Tensor row_lse =
        empty({plan.segments, 2, plan.batch, plan.heads, plan.chunk}, wide_dtype(q_.dtype()));
    for_each_segment(plan, k_, v_, [&](int64_t segment, const KeysAndValues& keys) {
      for (const int half : {0, 1}) {
        const KeysAndValues seen = keys.positions(0, plan.visible(half, options.causal));
        attention_forward(plan.queries(q_, segment, half), seen.k, seen.v,
                          plan.options_of(options, mask_, starts_, sinks_, segment, half),
                          {plan.queries(y, segment, half), plan.logsumexp(row_lse, segment, half)});
      }
    });
    options.max_logits = {};  // backward measures nothing
    lse.save(row_lse);
    return out.save_output(y);
  }

  TensorList backward(const Tensor& dy, NeedsGrad /*needs*/) const {
    const Tensor queries = q;
    const Tensor own_keys = k;
    const Tensor own_values = v;
    const Tensor seen_mask = mask;
    const Tensor documents = starts;
    const Tensor logits = sinks;
    if (grad_enabled()) {
      const auto twin = [&](const TensorList& in) {
        AttentionOptions whole = options;
        whole.mask = seen_mask;
        whole.document_starts = documents;
        whole.sinks = logits.defined() ? in[3] : logits;
        return composed_context_parallel_attention(in[0], in[1], in[2], whole, layout);
      };
      TensorList inputs = {queries, own_keys, own_values};
      if (logits.defined()) {
        inputs.push_back(logits);
      }
      TensorList gradients = vjp(twin, dy, inputs);
      const Tensor dsinks = logits.defined() ? gradients[3] : Tensor();
      return {gradients[0], gradients[1], gradients[2], Tensor(), Tensor(), dsinks};
    }
    const Tensor y = out;
    const Tensor row_lse = lse;
    const Plan plan(queries, own_keys, own_values, layout);
    Tensor dq = empty_by_rows(queries, plan.dim);
    Tensor dk = empty_by_rows(own_keys, plan.dim);
    Tensor dv = empty_by_rows(own_keys, plan.value_dim);
    AttentionGradients all{dq, dk, dv};
    set_sink_gradients(logits, all);
    const auto of_segment = [&](int64_t segment, const Tensor& some_dq, const KeysAndValues& sums) {
      return AttentionGradients{some_dq, sums.k, sums.v, plan.heads_of(all.dsinks, segment),
                                all.exact_dsinks};
    };
    const bool by_leaves = in_exact();  // then the factor of dk comes after the sum over ranks
    const double k_factor = by_leaves ? attention_scale(options, plan.dim) : 1;
    ScatteredGradients under_way;
    for_each_segment(plan, own_keys, own_values, [&](int64_t segment, const KeysAndValues& keys) {
      const KeysAndValues sums(plan,
                               zeros({plan.numbers(plan.length())}, wide_dtype(queries.dtype())));
      for (const int half : {0, 1}) {
        const int64_t visible = plan.visible(by_leaves ? 1 : half, options.causal);
        const KeysAndValues seen = keys.positions(0, visible);
        const KeysAndValues seen_sums = sums.positions(0, visible);
        if (by_leaves) {  // a leaf has queries of both halves
          attention_backward(plan.queries(queries, segment), seen.k, seen.v,
                             plan.options_of_both(options, seen_mask, documents, logits, segment),
                             {plan.queries(y, segment), plan.logsumexp_of_both(row_lse, segment)},
                             plan.queries(dy, segment),
                             of_segment(segment, plan.queries(dq, segment), seen_sums),
                             plan.leaves());
          break;
        }
        attention_backward(plan.queries(queries, segment, half), seen.k, seen.v,
                           plan.options_of(options, seen_mask, documents, logits, segment, half),
                           {plan.queries(y, segment, half), plan.logsumexp(row_lse, segment, half)},
                           plan.queries(dy, segment, half),
                           of_segment(segment, plan.queries(dq, segment, half), seen_sums));
      }
      under_way.finish(dk, dv, k_factor);
      under_way = ScatteredGradients(plan, sums, segment);
    });
    under_way.finish(dk, dv, k_factor);
    return {dq, dk, dv, Tensor(), Tensor(), sink_gradient(logits, all)};
  }
};

void check_call(const Tensor& q,
                const Tensor& k,
                const Tensor& v,
                const AttentionOptions& options,
                const ContextParallelLayout& layout) {
  check<ValueError>(
      q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && k.size(0) == v.size(0) &&
          k.size(1) == v.size(1) && k.size(2) == v.size(2) && q.size(0) == k.size(0) &&
          q.size(2) == k.size(2) && q.size(3) == k.size(3),
      kName, ": q ", q.shape(), ", k ", k.shape(), " and v ", v.shape(),
      " must be [B, heads, own tokens, D] and agree but for the heads and the size of values");
  check<ValueError>(k.size(1) > 0 && q.size(1) % k.size(1) == 0, kName, ": the ", k.size(1),
                    " heads of k and v must divide the ", q.size(1), " heads of q");
  check<ValueError>(q.size(2) % 2 == 0, kName, ": a rank has two chunks of a sequence, but ",
                    q.size(2), " tokens");
  const int64_t length = q.size(2) * layout.size;
  check<ValueError>(
      !options.document_starts.defined() ||
          (options.document_starts.dim() == 2 && options.document_starts.size(1) == length),
      kName, ": document_starts must be those of whole sequences, [B or 1, ", length, "], got ",
      describe(options.document_starts));
  if (options.mask.defined()) {
    const Shape& s = options.mask.shape();
    check<ValueError>(s.size() == 4 && (s[0] == 1 || s[0] == q.size(0)) && s[1] == 1 &&
                          (s[2] == 1 || s[2] == q.size(2)) && s[3] == length,
                      kName, ": the mask must be [", q.size(0), " or 1, 1, 1 or ", q.size(2), ", ",
                      length, "], got ", s);
  }
  check<ValueError>(options.alibi_slopes.empty() ||
                        static_cast<int64_t>(options.alibi_slopes.size()) == q.size(1),
                    kName, ": ", options.alibi_slopes.size(), " slopes for ", q.size(1), " heads");
  check<ValueError>(!options.sinks.defined() || options.sinks.shape() == Shape{q.size(1)}, kName,
                    ": sinks must be [", q.size(1), "], got ",
                    options.sinks.defined() ? options.sinks.shape() : Shape{});
  check<ValueError>(!options.max_logits.defined() || options.max_logits.shape() == Shape{q.size(1)},
                    kName, ": max_logits must be [", q.size(1), "], got ",
                    options.max_logits.defined() ? options.max_logits.shape() : Shape{});
  check<ValueError>(options.dropout_p == 0 || (options.dropout_place.shape.size() == 4 &&
                                               options.dropout_place.shape[2] == length &&
                                               options.dropout_place.shape[3] == length),
                    kName, ": dropout needs the place of the weights [B, H, ", length, ", ", length,
                    "], got ", options.dropout_place.shape);
}

}  // namespace

Tensor context_parallel_attention(const Tensor& q,
                                  const Tensor& k,
                                  const Tensor& v,
                                  const AttentionOptions& options,
                                  const ContextParallelLayout& layout) {
  if (layout.size == 1) {
    return scaled_dot_product_attention(q, k, v, options);
  }
  check_call(q, k, v, options, layout);
  AttentionOptions maskless = options;
  maskless.mask = {};
  maskless.document_starts = {};
  maskless.sinks = {};
  const Tensor sinks = sinks_for(options.sinks, q.dtype());
  return apply_op(ContextParallelAttention{maskless, layout, {}, {}, {}, {}, {}, {}, {}, {}}, q, k,
                  v, options.mask, options.document_starts, sinks);
}

Tensor composed_context_parallel_attention(const Tensor& q,
                                           const Tensor& k,
                                           const Tensor& v,
                                           const AttentionOptions& options,
                                           const ContextParallelLayout& layout,
                                           std::optional<DType> softmax_dtype) {
  if (layout.size == 1) {
    return composed_attention(q, k, v, options, softmax_dtype);
  }
  check_call(q, k, v, options, layout);
  const int64_t chunk = q.size(2) / 2;
  const Tensor keys = gather_chunks(k, 2, layout);
  const Tensor values = gather_chunks(v, 2, layout);
  TensorList halves;
  for (const int half : {0, 1}) {
    AttentionOptions own = options;
    own.q_offset = layout.chunk_of(layout.rank, half) * chunk;
    const int64_t visible = options.causal ? own.q_offset + chunk : keys.size(2);
    if (options.mask.defined()) {
      own.mask = rows_of_mask(options.mask, half, chunk).slice(3, 0, visible);
    }
    if (options.dropout_p > 0) {
      own.dropout_place.start[2] = own.q_offset;
    }
    halves.push_back(composed_attention(q.slice(2, half * chunk, (half + 1) * chunk),
                                        keys.slice(2, 0, visible), values.slice(2, 0, visible), own,
                                        softmax_dtype));
  }
  return cat(halves, 2);
}

}  // namespace tapestry

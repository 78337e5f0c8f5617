#include "parallel_core/context_parallel/attention.h"

#include <array>
#include <utility>

#include "autograd/ops/map.h"
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
  Plan(const Tensor& q, const Tensor& k, const ContextParallelLayout& layout_)
      : layout(layout_),
        batch(k.size(0)),
        segments(segments_of(k.size(1))),
        groups(k.size(1) / segments),
        heads(q.size(1) / segments),
        chunk(q.size(2) / 2),
        dim(k.size(3)) {}

  const ContextParallelLayout& layout;
  int64_t batch;
  int64_t segments;
  int64_t groups;  // of a segment, and so are the heads
  int64_t heads;
  int64_t chunk;
  int64_t dim;

  int64_t length() const { return layout.chunks() * chunk; }
  /// A segment of queries, or of what belongs to them, and of these one half.
  Tensor queries(const Tensor& x, int64_t segment, int half) const {
    return x.slice(1, segment * heads, (segment + 1) * heads)
        .slice(2, half * chunk, (half + 1) * chunk);
  }
  Tensor keys(const Tensor& x, int64_t segment) const {
    return x.slice(1, segment * groups, (segment + 1) * groups);
  }
  Tensor logsumexp(const Tensor& lse, int64_t segment, int half) const {
    return lse.select(0, segment).select(0, half);
  }
  /// Keys that a half of the queries can see.
  int64_t visible(int half, bool causal) const {
    return causal ? (layout.chunk_of(layout.rank, half) + 1) * chunk : length();
  }

  AttentionOptions options_of(const AttentionOptions& whole,
                              const Tensor& mask,
                              const Tensor& starts,
                              int64_t segment,
                              int half) const {
    AttentionOptions options = whole;
    options.q_offset = layout.chunk_of(layout.rank, half) * chunk;
    options.document_starts = starts;
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
};

// Keys and values of a segment, [2, B, groups, S, D], on their way from all ranks.
class GatheredKeys {
 public:
  GatheredKeys(const Plan& plan, const Tensor& k, const Tensor& v, int64_t segment) : plan_(&plan) {
    const Shape own = {2, plan.batch, plan.groups, 2 * plan.chunk, plan.dim};
    const Tensor packed = empty(own, k.dtype());
    copy_values(plan.keys(k, segment), packed.select(0, 0));
    copy_values(plan.keys(v, segment), packed.select(0, 1));
    Shape all = own;
    all.insert(0, plan.layout.size);
    by_rank_ = empty(all, k.dtype());
    work_ = plan.layout.group->all_gather_async(by_rank_, packed);
  }

  /// Waits, and returns them in the order of the sequence. To be called once.
  Tensor wait() {
    work_->wait();
    Tensor out =
        empty({2, plan_->batch, plan_->groups, plan_->length(), plan_->dim}, by_rank_.dtype());
    for (int owner = 0; owner < plan_->layout.size; ++owner) {
      for (const int half : {0, 1}) {
        const int64_t to = plan_->layout.chunk_of(owner, half) * plan_->chunk;
        copy_values(
            by_rank_.select(0, owner).slice(3, half * plan_->chunk, (half + 1) * plan_->chunk),
            out.slice(3, to, to + plan_->chunk));
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
  /// `sums` [2, B, groups, S, D] in the order of the sequence: this rank's share.
  ScatteredGradients(const Plan& plan, const Tensor& sums, int64_t segment)
      : plan_(&plan), segment_(segment) {
    const Shape own = {2, plan.batch, plan.groups, 2 * plan.chunk, plan.dim};
    Shape all = own;
    all.insert(0, plan.layout.size);
    const Tensor by_rank = empty(all, sums.dtype());
    for (int owner = 0; owner < plan.layout.size; ++owner) {
      for (const int half : {0, 1}) {
        const int64_t from = plan.layout.chunk_of(owner, half) * plan.chunk;
        copy_values(sums.slice(3, from, from + plan.chunk),
                    by_rank.select(0, owner).slice(3, half * plan.chunk, (half + 1) * plan.chunk));
      }
    }
    own_ = empty(own, sums.dtype());
    work_ = plan.layout.group->reduce_scatter_async(own_, by_rank);
  }

  /// Waits, and writes the segment's part of dk and dv. Nothing if none is under way.
  void finish(const Tensor& dk, const Tensor& dv) {
    if (work_ == nullptr) {
      return;
    }
    std::exchange(work_, nullptr)->wait();
    copy_values(own_.select(0, 0), plan_->keys(dk, segment_));
    copy_values(own_.select(0, 1), plan_->keys(dv, segment_));
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
Tensor empty_by_rows(const Tensor& like) {
  const Shape& s = like.shape();
  return empty({s[0], s[2], s[1], s[3]}, like.dtype()).permute({0, 2, 1, 3});
}

struct ContextParallelAttention {
  static constexpr OpName name = kName;
  AttentionOptions options;  // without mask and documents
  ContextParallelLayout layout;
  SavedTensor q, k, v, mask, starts, out, lse;

  Tensor forward(const Tensor& q_,
                 const Tensor& k_,
                 const Tensor& v_,
                 const Tensor& mask_,
                 const Tensor& starts_) {
    q.save(q_);
    k.save(k_);
    v.save(v_);
    mask.save(mask_);
    starts.save(starts_);
    const Plan plan(q_, k_, layout);
    const Tensor y = empty_by_rows(q_);
    const Tensor row_lse =
        empty({plan.segments, 2, plan.batch, plan.heads, plan.chunk}, wide(q_.dtype()));
    for_each_segment(plan, k_, v_, [&](int64_t segment, const Tensor& keys) {
      for (const int half : {0, 1}) {
        const Tensor seen = keys.slice(3, 0, plan.visible(half, options.causal));
        attention_forward(plan.queries(q_, segment, half), seen.select(0, 0), seen.select(0, 1),
                          plan.options_of(options, mask_, starts_, segment, half),
                          {plan.queries(y, segment, half), plan.logsumexp(row_lse, segment, half)});
      }
    });
    lse.save(row_lse);
    return out.save_output(y);
  }

  TensorList backward(const Tensor& dy, NeedsGrad /*needs*/) const {
    const Tensor queries = q;
    const Tensor own_keys = k;
    const Tensor own_values = v;
    const Tensor seen_mask = mask;
    const Tensor documents = starts;
    if (grad_enabled()) {
      const auto twin = [&](const TensorList& in) {
        AttentionOptions whole = options;
        whole.mask = seen_mask;
        whole.document_starts = documents;
        return composed_context_parallel_attention(in[0], in[1], in[2], whole, layout);
      };
      TensorList gradients = vjp(twin, dy, {queries, own_keys, own_values});
      gradients.resize(5);
      return gradients;
    }
    const Tensor y = out;
    const Tensor row_lse = lse;
    const Plan plan(queries, own_keys, layout);
    Tensor dq = empty_by_rows(queries);
    Tensor dk = empty_by_rows(own_keys);
    Tensor dv = empty_by_rows(own_keys);
    ScatteredGradients under_way;
    for_each_segment(plan, own_keys, own_values, [&](int64_t segment, const Tensor& keys) {
      const Tensor sums = zeros(keys.shape(), wide(queries.dtype()));
      for (const int half : {0, 1}) {
        const int64_t visible = plan.visible(half, options.causal);
        const Tensor seen = keys.slice(3, 0, visible);
        const Tensor seen_sums = sums.slice(3, 0, visible);
        attention_backward(
            plan.queries(queries, segment, half), seen.select(0, 0), seen.select(0, 1),
            plan.options_of(options, seen_mask, documents, segment, half),
            {plan.queries(y, segment, half), plan.logsumexp(row_lse, segment, half)},
            plan.queries(dy, segment, half),
            {plan.queries(dq, segment, half), seen_sums.select(0, 0), seen_sums.select(0, 1)});
      }
      under_way.finish(dk, dv);
      under_way = ScatteredGradients(plan, sums, segment);
    });
    under_way.finish(dk, dv);
    return {dq, dk, dv, Tensor(), Tensor()};
  }

 private:
  static DType wide(DType dtype) { return dtype == kFloat64 ? kFloat64 : kFloat32; }
};

void check_call(const Tensor& q,
                const Tensor& k,
                const Tensor& v,
                const AttentionOptions& options,
                const ContextParallelLayout& layout) {
  check<ValueError>(q.dim() == 4 && k.dim() == 4 && k.shape() == v.shape() &&
                        q.size(0) == k.size(0) && q.size(2) == k.size(2) && q.size(3) == k.size(3),
                    kName, ": q ", q.shape(), ", k ", k.shape(), " and v ", v.shape(),
                    " must be [B, heads, own tokens, D] and agree but for the heads");
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
  return apply_op(ContextParallelAttention{maskless, layout, {}, {}, {}, {}, {}, {}, {}}, q, k, v,
                  options.mask, options.document_starts);
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

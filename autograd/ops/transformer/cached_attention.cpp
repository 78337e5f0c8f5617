#include "autograd/ops/transformer/cached_attention.h"

#include <algorithm>
#include <cmath>

#include "autograd/kernels/attention/attention.h"
#include "autograd/kernels/attention/attention_call.h"
#include "autograd/kernels/attention/cached_attention.h"
#include "autograd/kernels/attention/one_order_attention.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/kernels/machine/one_order.h"
#include "autograd/ops/map.h"
#include "autograd/ops/view.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

constexpr OpName kCachedAttention = "cached_attention";

/// Queries of a group up to which its keys are widened and met by all of them.
constexpr int64_t kMostQueries = 64;

struct Caches {
  int64_t batch, heads, length, dim, groups, capacity, value_dim;
};

Caches check_caches(const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto name = kCachedAttention;
  check<TypeError>(is_floating(q.dtype()) && k.dtype() == q.dtype() && v.dtype() == q.dtype(), name,
                   ": q and the caches must have one floating dtype, got ", name_of(q.dtype()),
                   ", ", name_of(k.dtype()), ", ", name_of(v.dtype()));
  check<ValueError>(
      q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && k.size(0) == v.size(0) &&
          k.size(1) == v.size(1) && k.size(2) == v.size(2) && (k.size(3) == 0) == (v.size(3) == 0),
      name,
      ": q must be [B, H, T, D] and the caches [B, G, capacity, D] and [B, G, capacity, E], got ",
      q.shape(), ", ", k.shape(), ", ", v.shape());
  const Caches c = {q.size(0), q.size(1), q.size(2), q.size(3), k.size(1), k.size(2), v.size(3)};
  check<ValueError>(k.size(0) == c.batch && k.size(3) == c.dim, name, ": q ", q.shape(),
                    " and the caches ", k.shape(), " differ in batch or head size");
  check<ValueError>(c.groups > 0 && c.heads % c.groups == 0, name, ": the ", c.groups,
                    " heads of the caches must divide the ", c.heads, " heads of q");
  return c;
}

void check_places(const Caches& c,
                  const std::vector<int64_t>& positions,
                  const CachedAttentionOptions& options) {
  const auto name = kCachedAttention;
  const auto rows = static_cast<size_t>(c.batch);
  check<ValueError>(positions.size() == rows, name, ": ", positions.size(), " positions for ", rows,
                    " rows");
  check<ValueError>(options.counts.empty() || options.counts.size() == rows, name, ": ",
                    options.counts.size(), " counts for ", rows, " rows");
  check<ValueError>(options.window_left.value_or(0) >= 0, name,
                    ": window_left must not be negative, got ", options.window_left.value_or(0));
  check<ValueError>(
      !options.ring || (options.window_left && c.capacity >= *options.window_left + c.length), name,
      ": a ring needs window_left and a capacity of at least window_left + T (",
      options.window_left.value_or(0), " + ", c.length, "), got ", c.capacity);
  for (size_t b = 0; b < rows; ++b) {
    const int64_t count = options.counts.empty() ? c.length : options.counts[b];
    check<ValueError>(count >= 0 && count <= c.length, name, ": row ", b, " has ", count, " of ",
                      c.length, " queries");
    check<ValueError>(positions[b] >= 0 && (options.ring || positions[b] + count <= c.capacity),
                      name, ": row ", b, " has ", count, " queries from position ", positions[b],
                      " on, the caches have ", c.capacity, " slots");
  }
}

Tensor with_dense_axis(const Tensor& x) {
  return x.size(3) > 1 && x.strides()[3] != 1 ? dense_copy(x) : x;
}

kernels::AttentionStrides strides_by_head(const Tensor& x) {
  return {x.strides()[0], x.strides()[1], x.strides()[2]};
}

const std::byte* row_of(const Tensor& x, int64_t sample) {
  return static_cast<const std::byte*>(x.raw()) + sample * x.strides()[0] * size_of(x.dtype());
}

/// The keys [begin, end) of a row, [1, G, end - begin, D]: where they lie, or of a ring a copy.
Tensor keys_between(const Tensor& cache, int64_t sample, int64_t begin, int64_t end, bool ring) {
  const int64_t capacity = cache.size(2);
  const Tensor row = cache.slice(0, sample, sample + 1);
  if (!ring) {
    return row.slice(2, begin, end);
  }
  Tensor out = empty({1, cache.size(1), end - begin, cache.size(3)}, cache.dtype());
  for (int64_t key = begin; key < end;) {
    const int64_t slot = key % capacity;
    const int64_t count = std::min(end - key, capacity - slot);
    copy_values(row.slice(2, slot, slot + count), out.slice(2, key - begin, key - begin + count));
    key += count;
  }
  return out;
}

struct CachedAttentionOp {
  static constexpr OpName name = kCachedAttention;
  static constexpr bool differentiable = false;
  std::vector<int64_t> positions;
  CachedAttentionOptions options;

  Tensor forward(const Tensor& q_, const Tensor& k_, const Tensor& v_) {
    const Tensor q = with_dense_axis(q_);
    const Tensor k = with_dense_axis(k_);
    const Tensor v = with_dense_axis(v_);
    const Caches c = check_caches(q, k, v);
    const Tensor rows = empty({c.batch, c.length, c.heads, c.value_dim}, q.dtype());
    const Strides& s = rows.strides();
    Tensor out =
        alias(rows, {c.batch, c.heads, c.length, c.value_dim}, {s[0], s[2], s[1], s[3]}, 0);
    if (out.numel() == 0) {
      return out;
    }
    const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(c.dim)));
    const std::vector<double> logits =
        options.sinks.defined() ? options.sinks.to_vector<double>() : std::vector<double>();
    if (options.counts.empty()) {
      options.counts.assign(static_cast<size_t>(c.batch), c.length);
    }
    // In exact mode queries have the bits that training gives them, so its kernel computes them.
    const bool by_blocks = (q.dtype() == kFloat32 || q.dtype() == kBFloat16) && !in_exact();
    const bool few = c.length * (c.heads / c.groups) <= kMostQueries;
    if (by_blocks && (few || in_one_order())) {
      const kernels::CachedAttention call = {.dtype = q.dtype(),
                                             .batch = c.batch,
                                             .heads = c.heads,
                                             .groups = c.groups,
                                             .q_len = c.length,
                                             .head_dim = c.dim,
                                             .value_dim = c.value_dim,
                                             .capacity = c.capacity,
                                             .ring = options.ring,
                                             .window_left = options.window_left.value_or(-1),
                                             .scale = scale,
                                             .score_cap = options.score_cap,
                                             .slopes = slopes(),
                                             .sinks = sinks_of(logits),
                                             .positions = positions.data(),
                                             .counts = options.counts.data(),
                                             .q = {q.raw(), strides_by_head(q)},
                                             .k = {k.raw(), strides_by_head(k)},
                                             .v = {v.raw(), strides_by_head(v)},
                                             .out = {out.raw(), strides_by_head(out)}};
      if (few) {
        kernels::cached_attention(call);
      } else {
        for (int64_t b = 0; b < c.batch; ++b) {
          clear_rest(b, c.length, out);
        }
        attend_many(call);
      }
      return out;
    }
    for (int64_t b = 0; b < c.batch; ++b) {
      attend(c, b, scale, logits, q, k, v, out);
    }
    return out;
  }

 private:
  /// Many queries, each with the bits that it has among few.
  static void attend_many(const kernels::CachedAttention& call) {
    std::vector<kernels::CausalRun> runs;
    for (int64_t b = 0; b < call.batch; ++b) {
      if (call.counts[b] > 0) {
        runs.push_back({.sample = b, .count = call.counts[b], .position = call.positions[b]});
      }
    }
    kernels::attend_runs(call, runs, nullptr, nullptr);
  }

  /// Rows of `out` behind the queries that there are.
  void clear_rest(int64_t sample, int64_t length, const Tensor& out) const {
    const int64_t count = options.counts[static_cast<size_t>(sample)];
    if (count < length) {
      const Tensor rest = out.slice(0, sample, sample + 1).slice(2, count, length);
      copy_values(broadcast_view(scalar(0, out.dtype()), rest.shape()), rest);
    }
  }

  const double* slopes() const {
    return options.alibi_slopes.empty() ? nullptr : options.alibi_slopes.data();
  }

  static const double* sinks_of(const std::vector<double>& logits) {
    return logits.empty() ? nullptr : logits.data();
  }

  /// Many queries of one row, by the kernel of training's attention.
  void attend(const Caches& c,
              int64_t b,
              double scale,
              const std::vector<double>& logits,
              const Tensor& q,
              const Tensor& k,
              const Tensor& v,
              const Tensor& out) const {
    const auto row = static_cast<size_t>(b);
    const int64_t count = options.counts[row];
    clear_rest(b, c.length, out);
    if (count == 0) {
      return;
    }
    const int64_t end = positions[row] + count;
    int64_t begin = std::max<int64_t>(
        0, options.window_left ? positions[row] - *options.window_left : int64_t{0});
    if (in_exact()) {  // blocks of keys are counted from position 0
      begin = begin / kernels::kAttentionBlock * kernels::kAttentionBlock;
    }
    const Tensor keys = keys_between(k, b, begin, end, options.ring);
    const Tensor values = keys_between(v, b, begin, end, options.ring);
    const Tensor lse = empty({c.heads * count}, q.dtype() == kFloat64 ? kFloat64 : kFloat32);
    kernels::AttentionShape shape;
    shape.batch = 1;
    shape.heads = c.heads;
    shape.groups = c.groups;
    shape.q_len = count;
    shape.kv_len = end - begin;
    shape.head_dim = c.dim;
    shape.value_dim = c.value_dim;
    shape.causal = true;
    shape.window_left = options.window_left.value_or(-1);
    shape.q_offset = positions[row] - begin;
    shape.scale = scale;
    shape.score_cap = options.score_cap;
    kernels::attention({.dtype = q.dtype(),
                        .shape = shape,
                        .q = {row_of(q, b), strides_by_head(q)},
                        .k = {keys.raw(), strides_by_head(keys)},
                        .v = {values.raw(), strides_by_head(values)},
                        .slopes = slopes(),
                        .sinks = sinks_of(logits),
                        .out = {const_cast<std::byte*>(row_of(out, b)), strides_by_head(out)},
                        .lse = lse.raw()});
  }
};

}  // namespace

Tensor cached_attention(const Tensor& q,
                        const Tensor& cache_k,
                        const Tensor& cache_v,
                        const std::vector<int64_t>& positions,
                        const CachedAttentionOptions& options) {
  check_defined("cached_attention", q, "q", cache_k, "cache_k", cache_v, "cache_v");
  const Caches c = check_caches(q, cache_k, cache_v);
  check_places(c, positions, options);
  check<ValueError>(options.scale.value_or(1) != 0, kCachedAttention, ": the scale must not be 0");
  check<ValueError>(options.score_cap >= 0 && std::isfinite(options.score_cap), kCachedAttention,
                    ": score_cap must be a finite number of at least 0, got ", options.score_cap);
  check<ValueError>(
      options.alibi_slopes.empty() || static_cast<int64_t>(options.alibi_slopes.size()) == c.heads,
      kCachedAttention, ": ", options.alibi_slopes.size(), " slopes for ", c.heads, " heads");
  check<ValueError>(!options.sinks.defined() || options.sinks.shape() == Shape{c.heads},
                    kCachedAttention, ": sinks must be [", c.heads, "], got ",
                    options.sinks.defined() ? options.sinks.shape() : Shape{});
  check<RuntimeError>(
      !grad_enabled() ||
          !(q.requires_grad() || cache_k.requires_grad() || cache_v.requires_grad() ||
            (options.sinks.defined() && options.sinks.requires_grad())),
      kCachedAttention,
      ": has no gradient; run inference under a NoGradGuard, or take "
      "scaled_dot_product_attention()");
  return apply_op(CachedAttentionOp{positions, options}, q, cache_k, cache_v);
}

}  // namespace tapestry

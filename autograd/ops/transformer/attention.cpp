#include "autograd/ops/transformer/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "autograd/kernels/attention/attention.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/rows.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/softmax.h"
#include "autograd/ops/transformer/attention_passes.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/main_grad.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

constexpr std::string_view kName = "scaled_dot_product_attention";

// The options with everything decided: defaults filled in and random numbers
// drawn, so that backward and the composed form see the same.
struct Problem {
  bool causal = false;
  int64_t window_left = -1;
  double scale = 1;
  double score_cap = 0;
  int64_t q_offset = 0;
  double dropout_p = 0;
  RandomKey key;       // offset 0
  LogicalPlace place;  // of the weights [B, H, S, T]
  std::vector<double> slopes;
};

void check_place(const LogicalPlace& place, const Shape& weights, int64_t q_offset) {
  check<ValueError>(place.shape.size() == 4 && place.start.size() == 4, kName,
                    ": dropout_place (shape ", place.shape, ", start ", place.start,
                    ") must have the four axes of the weights ", weights);
  check<ValueError>(place.sample_axis == 0 || place.sample_axis == -1, kName,
                    ": the sample_axis of dropout_place must be 0 or -1, got ", place.sample_axis);
  check<ValueError>(place.start[2] == q_offset && place.start[3] == 0, kName,
                    ": dropout_place starts at ", place.start,
                    ", but its axis 2 must start at "
                    "q_offset (",
                    q_offset, ") and its axis 3 at 0");
  for (int64_t axis = 0; axis < 4; ++axis) {
    check<ValueError>(
        place.start[axis] >= 0 &&
            (axis == place.sample_axis || place.start[axis] + weights[axis] <= place.shape[axis]),
        kName, ": weights ", weights, " at ", place.start, " do not lie inside dropout_place ",
        place.shape);
  }
}

void check_tensors(const Tensor& q, const Tensor& k, const Tensor& v) {
  check_floating(kName, q.dtype());
  check<TypeError>(q.dtype() == k.dtype() && q.dtype() == v.dtype(), kName,
                   ": q, k and v must have one dtype, got ", name_of(q.dtype()), ", ",
                   name_of(k.dtype()), ", ", name_of(v.dtype()));
  check<ValueError>(q.dim() == 4 && k.dim() == 4 && v.dim() == 4, kName,
                    ": q, k and v must be [B, heads, length, D], got ", q.shape(), ", ", k.shape(),
                    ", ", v.shape());
  check<ValueError>(k.size(0) == v.size(0) && k.size(1) == v.size(1) && k.size(2) == v.size(2) &&
                        (k.size(3) == 0) == (v.size(3) == 0),
                    kName, ": the shapes of k ", k.shape(), " and v ", v.shape(),
                    " differ in more than the head size");
  check<ValueError>(q.shape()[0] == k.shape()[0] && q.shape()[3] == k.shape()[3], kName, ": q ",
                    q.shape(), " and k ", k.shape(), " differ in batch or head size");
  const int64_t heads = q.shape()[1];
  const int64_t groups = k.shape()[1];
  check<ValueError>(groups > 0 ? heads % groups == 0 : heads == 0, kName, ": the ", groups,
                    " heads of k and v must divide the ", heads, " heads of q");
}

void check_documents(const Tensor& starts, const Shape& weights, const AttentionOptions& options) {
  check<TypeError>(starts.dtype() == kInt32, kName, ": document_starts must be int32, got ",
                   name_of(starts.dtype()));
  check<ValueError>(options.causal, kName, ": document_starts need causal attention");
  const int64_t used = options.q_offset + weights[2];
  check<ValueError>(starts.dim() == 2 && starts.is_contiguous() &&
                        (starts.size(0) == weights[0] || starts.size(0) == 1) &&
                        starts.size(1) >= used,
                    kName, ": document_starts must be contiguous [", weights[0], " or 1, at least ",
                    used, "], got ", describe(starts));
  const int32_t* row = starts.data<int32_t>();
  for (int64_t b = 0; b < starts.size(0); ++b, row += starts.size(1)) {
    for (int64_t p = 0; p < starts.size(1); ++p) {
      check<ValueError>(row[p] >= (p > 0 ? row[p - 1] : 0) && row[p] <= p, kName,
                        ": document_starts must not decrease nor lie behind their position, got ",
                        row[p], " at position ", p, " of row ", b);
    }
  }
}

void check_sinks(const Tensor& sinks, int64_t heads) {
  check<TypeError>(is_floating(sinks.dtype()), kName, ": sinks must be floating, got ",
                   name_of(sinks.dtype()));
  check<ValueError>(sinks.shape() == Shape{heads}, kName, ": sinks must be [", heads, "], got ",
                    sinks.shape());
}

void check_max_logits(const Tensor& maxima, int64_t heads) {
  check<TypeError>(maxima.dtype() == kFloat32, kName, ": max_logits must be float32, got ",
                   name_of(maxima.dtype()));
  check<ValueError>(maxima.shape() == Shape{heads} && maxima.is_contiguous(), kName,
                    ": max_logits must be contiguous [", heads, "], got ", describe(maxima));
}

// Checks everything and draws the numbers for dropout.
Problem pose(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  check_tensors(q, k, v);
  const Shape weights{q.shape()[0], q.shape()[1], q.shape()[2], k.shape()[2]};
  check<ValueError>(!options.window_left || *options.window_left >= 0, kName,
                    ": window_left must not be negative, got ", options.window_left.value_or(0));
  check<ValueError>(options.q_offset >= 0, kName, ": q_offset must not be negative, got ",
                    options.q_offset);
  check<ValueError>(options.dropout_p >= 0 && options.dropout_p < 1, kName,
                    ": dropout_p must lie in [0, 1), got ", options.dropout_p);
  check<ValueError>(options.score_cap >= 0 && std::isfinite(options.score_cap), kName,
                    ": score_cap must be a finite number of at least 0, got ", options.score_cap);
  if (options.mask.defined()) {
    check<TypeError>(options.mask.dtype() == kBool, kName, ": the mask must be bool, got ",
                     name_of(options.mask.dtype()));
    check<ValueError>(broadcast_shapes(kName, options.mask.shape(), weights) == weights, kName,
                      ": the mask ", options.mask.shape(), " does not broadcast to ", weights);
  }
  if (options.document_starts.defined()) {
    check_documents(options.document_starts, weights, options);
  }
  if (options.sinks.defined()) {
    check_sinks(options.sinks, weights[1]);
  }
  if (options.max_logits.defined()) {
    check_max_logits(options.max_logits, weights[1]);
  }
  Problem problem;
  problem.causal = options.causal;
  problem.window_left = options.window_left.value_or(-1);
  problem.scale = attention_scale(options, q.shape()[3]);
  problem.score_cap = options.score_cap;
  problem.q_offset = options.q_offset;
  problem.slopes = options.alibi_slopes;
  check<ValueError>(
      problem.slopes.empty() ||
          (static_cast<int64_t>(problem.slopes.size()) == weights[1] && problem.scale != 0),
      kName, ": ", problem.slopes.size(), " slopes for ", weights[1], " heads and a scale of ",
      problem.scale, "; there must be one for each head, and the scale must not be 0");
  problem.dropout_p = options.dropout_p;
  if (options.dropout_p > 0) {
    problem.place = options.dropout_place;
    if (problem.place.shape.empty()) {
      problem.place = {weights, {0, 0, options.q_offset, 0}, -1};
      problem.place.shape[2] += options.q_offset;
    }
    check_place(problem.place, weights, options.q_offset);
    problem.key = options.dropout_source.reserve(weights.numel(), RandomSource::Use::kBits);
    if (problem.key.offset != 0) {
      problem.key.stream = combine(problem.key.stream, problem.key.offset);
      problem.key.offset = 0;
    }
  }
  return problem;
}

Tensor query_positions(const Problem& problem, int64_t q_len) {
  const auto first = static_cast<double>(problem.q_offset);
  return arange(first, first + static_cast<double>(q_len)).unsqueeze(1);
}

// Which weights exist, bool [S, T] or with the further axes of mask and documents; undefined: all.
Tensor visible(const Problem& problem,
               int64_t q_len,
               int64_t kv_len,
               const Tensor& mask,
               const Tensor& starts) {
  const Tensor i = query_positions(problem, q_len);
  const Tensor j = arange(kv_len);
  Tensor keep = mask;
  const auto restrict = [&](const Tensor& rule) {
    keep = keep.defined() ? logical_and(keep, rule) : rule;
  };
  if (problem.causal) {
    restrict(le(j, i));
  }
  if (problem.window_left >= 0) {
    restrict(ge(j, sub(i, problem.window_left)));
  }
  if (starts.defined()) {
    const Tensor first = starts.slice(1, problem.q_offset, problem.q_offset + q_len);
    restrict(ge(j, first.to(j.dtype()).unsqueeze(1).unsqueeze(3)));  // [B, 1, S, 1]
  }
  return keep;
}

// What ALiBi adds to the scores, [H, S, T].
Tensor alibi_bias(const Problem& problem, int64_t q_len, int64_t kv_len, DType dtype) {
  const Tensor distance = sub(arange(kv_len), query_positions(problem, q_len)).to(dtype);
  const auto heads = static_cast<int64_t>(problem.slopes.size());
  return mul(tensor<double>(problem.slopes, {heads, 1, 1}).to(dtype), distance);
}

// What the composed form computes in: the products, and between them scale,
// mask and softmax.
struct Precision {
  DType product;
  DType softmax;
};

// Raises the maxima to the largest of the scores [B, H, S, T] that are visible.
void measure(const Tensor& scores, const Tensor& keep, const Tensor& maxima) {
  const NoGradGuard no_grad;
  const Tensor seen = keep.defined() ? masked_fill(scores.detach(), logical_not(keep),
                                                   -std::numeric_limits<double>::infinity())
                                     : scores.detach();
  const std::vector<float> found = amax(seen, {0, 2, 3}).to_vector<float>();
  auto* const most = maxima.data<float>();
  for (size_t head = 0; head < found.size(); ++head) {
    most[head] = std::max(most[head], found[head]);
  }
}

// `maxima`: max_logits of the options, where they are to be raised.
Tensor composed(const Tensor& q,
                const Tensor& k,
                const Tensor& v,
                const Tensor& mask,
                const Tensor& starts,
                const Tensor& sinks,
                const Problem& problem,
                const Precision& precision,
                const Tensor& maxima = {}) {
  const int64_t groups = k.shape()[1];
  const Shape& q_shape = q.shape();
  const Shape out_shape{q_shape[0], q_shape[1], q_shape[2], v.size(3)};
  const Shape weights{q_shape[0], q_shape[1], q_shape[2], k.size(2)};
  if (out_shape.numel() == 0) {
    const Tensor rest = add(sum(q), add(sum(k), sum(v)));
    return add(zeros(out_shape, q.dtype()),
               mul(sinks.defined() ? add(rest, sum(sinks).to(q.dtype())) : rest, 0));
  }
  // The heads of a group side by side: [B, G, H / G, S, D] against [B, G, 1, T,
  // D].
  const Tensor grouped =
      q.to(precision.product)
          .reshape({q_shape[0], groups, q_shape[1] / groups, q_shape[2], q_shape[3]});
  const Tensor keys = k.to(precision.product).unsqueeze(2);
  const Tensor values = v.to(precision.product).unsqueeze(2);
  Tensor scores = matmul(grouped, keys.t()).reshape(weights);
  scores = mul(scores.to(precision.softmax), problem.scale);
  if (problem.score_cap > 0) {
    scores = mul(tanh(mul(scores, 1 / problem.score_cap)), problem.score_cap);
  }
  if (!problem.slopes.empty()) {
    scores = add(scores, alibi_bias(problem, weights[2], weights[3], precision.softmax));
  }
  const Tensor keep = visible(problem, weights[2], weights[3], mask, starts);
  if (maxima.defined() && scores.numel() > 0) {
    measure(scores, keep, maxima);
  }
  Tensor p;
  if (sinks.defined()) {  // one more column, which is dropped
    if (keep.defined()) {
      scores = masked_fill(scores, logical_not(keep), -std::numeric_limits<double>::infinity());
    }
    const Tensor column = sinks.to(precision.softmax)
                              .reshape({1, weights[1], 1, 1})
                              .expand({weights[0], weights[1], weights[2], 1});
    p = softmax(cat({scores, column}, 3), -1).slice(3, 0, weights[3]);
  } else if (keep.defined()) {
    const Tensor hidden = logical_not(keep);
    const Tensor seen = any(keep, {-1}, true);
    const bool every_query_sees = all(seen).item() != 0;
    // The softmax of a row of nothing but -inf is NaN: there any weights do,
    // and then become 0.
    const Tensor filled = every_query_sees ? hidden : logical_and(hidden, seen);
    p = softmax(masked_fill(scores, filled, -std::numeric_limits<double>::infinity()), -1);
    p = every_query_sees ? p : masked_fill(p, hidden, 0);
  } else {
    p = softmax(scores, -1);
  }
  p = p.to(precision.product);
  if (problem.dropout_p > 0) {
    p = dropout(p, problem.dropout_p, problem.key, problem.place);
  }
  const Shape grouped_weights{weights[0], groups, weights[1] / groups, weights[2], weights[3]};
  return matmul(p.reshape(grouped_weights), values).reshape(out_shape).to(q.dtype());
}

// As the kernel: 16-bit inputs are widened and only the output is rounded.
Tensor composed_twin(const Tensor& q,
                     const Tensor& k,
                     const Tensor& v,
                     const Tensor& mask,
                     const Tensor& starts,
                     const Tensor& sinks,
                     const Problem& problem) {
  const DType wide = wide_dtype(q.dtype());
  return composed(q, k, v, mask, starts, sinks, problem, {wide, wide});
}

kernels::AttentionStrides strides_of(const Tensor& t) {
  return {t.strides()[0], t.strides()[1], t.strides()[2]};
}

// A tensor [B, H, S, D] that lies in memory as [B, S, H, D].
Tensor empty_by_rows(const Shape& shape, DType dtype) {
  const Tensor rows = empty({shape[0], shape[2], shape[1], shape[3]}, dtype);
  const Strides& s = rows.strides();
  return alias(rows, shape, {s[0], s[2], s[1], s[3]}, 0);
}

// Memory for dq, dk and dv. Where q, k and v are the parts of a tensor [B, S, heads of all three,
// D] or [S, B, ...], in any order, so are their gradients: backward of what has split it then has
// nothing to copy.
AttentionGradients empty_gradients(const Tensor& q, const Tensor& k, const Tensor& v, DType dtype) {
  const int64_t dim = q.size(3);
  const int64_t blocks = q.size(1) + k.size(1) + v.size(1);
  const int64_t row = blocks * dim;
  const int64_t first = std::min({q.offset(), k.offset(), v.offset()});
  std::vector<bool> taken(static_cast<size_t>(blocks));
  bool parts = q.numel() > 0 && k.size(2) == q.size(2) && v.size(3) == dim;
  for (const Tensor* const x : {&q, &k, &v}) {
    const Strides& s = x->strides();
    parts = parts && x->storage().get() == q.storage().get() && s[0] == q.strides()[0] &&
            s[2] == q.strides()[2] && s[3] == 1 &&
            ((s[0] == q.size(2) * row && s[2] == row) || (s[0] == row && s[2] == q.size(0) * row));
    for (int64_t head = 0; head < x->size(1) && parts; ++head) {
      const int64_t at = x->offset() - first + head * s[1];
      parts = at % dim == 0 && at < row && !taken[static_cast<size_t>(at / dim)];
      if (parts) {
        taken[static_cast<size_t>(at / dim)] = true;
      }
    }
  }
  if (!parts) {
    return {empty_by_rows(q.shape(), dtype), empty_by_rows(k.shape(), dtype),
            empty_by_rows(v.shape(), dtype)};
  }
  const Tensor whole = empty({q.size(0) * q.size(2) * row}, dtype);
  const auto part = [&](const Tensor& x) {
    return alias(whole, x.shape(), x.strides(), x.offset() - first);
  };
  return {part(q), part(k), part(v)};
}

Tensor with_dense_channels(const Tensor& x) {
  return x.shape()[3] > 1 && x.strides()[3] != 1 ? dense_copy(x) : x;
}

kernels::AttentionInput input(const Tensor& t) { return {t.raw(), strides_of(t)}; }
kernels::AttentionOutput output(const Tensor& t) { return {t.raw(), strides_of(t)}; }

// The mask, which broadcasts to the weights, with neighbouring keys side by
// side; `held` keeps the memory of a copy.
kernels::AttentionMask mask_of(const Tensor& mask, int64_t keys, Tensor& held) {
  if (!mask.defined()) {
    return {};
  }
  Shape shape(mask.shape());
  if (shape.empty()) {
    shape.push_back(1);
  }
  shape.back() = keys;
  held = broadcast_view(mask, shape);
  if (keys > 1 && held.strides().back() != 1) {
    held = dense_copy(held);
  }
  const int64_t missing = 4 - held.dim();
  const auto stride = [&](int64_t axis) {
    return axis < missing || held.shape()[axis - missing] == 1 ? 0 : held.strides()[axis - missing];
  };
  return {held.data<bool>(), {stride(0), stride(1), stride(2)}};
}

kernels::AttentionDocuments documents_of(const Tensor& starts) {
  if (!starts.defined()) {
    return {};
  }
  return {starts.data<int32_t>(), starts.size(0) == 1 ? 0 : starts.size(1)};
}

const double* slopes_of(const Problem& problem) {
  return problem.slopes.empty() ? nullptr : problem.slopes.data();
}

// The sinks as the kernel takes them; `held` keeps them.
const double* sinks_of(const Tensor& sinks, std::vector<double>& held) {
  if (!sinks.defined()) {
    return nullptr;
  }
  held = sinks.to_vector<double>();
  return held.data();
}

// The shape of the kernel's call; `streams` holds what it points to.
kernels::AttentionShape shape_of(const Problem& problem,
                                 const Tensor& queries,
                                 const Tensor& keys,
                                 const Tensor& values,
                                 std::vector<uint64_t>& streams) {
  kernels::AttentionShape shape;
  shape.batch = queries.shape()[0];
  shape.heads = queries.shape()[1];
  shape.q_len = queries.shape()[2];
  shape.head_dim = queries.shape()[3];
  shape.value_dim = values.shape()[3];
  shape.groups = keys.shape()[1];
  shape.kv_len = keys.shape()[2];
  shape.causal = problem.causal;
  shape.window_left = problem.window_left;
  shape.q_offset = problem.q_offset;
  shape.scale = problem.scale;
  shape.score_cap = problem.score_cap;
  if (problem.dropout_p > 0) {
    shape.dropout_p = problem.dropout_p;
    shape.rng_seed = problem.key.seed;
    shape.rng_stream = problem.key.stream;
    shape.head_offset = problem.place.start[1];
    shape.total_heads = problem.place.shape[1];
    shape.total_rows = problem.place.shape[2];
    shape.total_cols = problem.place.shape[3];
    shape.sample_offset = problem.place.start[0];
    if (problem.place.sample_axis == 0) {
      for (int64_t b = 0; b < shape.batch; ++b) {
        streams.push_back(
            combine(problem.key.stream, static_cast<uint64_t>(problem.place.start[0] + b)));
      }
      shape.sample_streams = streams.data();
    }
  }
  return shape;
}

// mask: undefined, or broadcasts to the weights; starts: undefined or those of the documents;
// sinks: undefined or [H]. Fills `out`, whose channels are dense, and lse.
void run_forward(const Problem& problem,
                 const Tensor& q,
                 const Tensor& k,
                 const Tensor& v,
                 const Tensor& mask,
                 const Tensor& starts,
                 const Tensor& sinks,
                 const Tensor& maxima,
                 const AttentionResult& result) {
  if (q.numel() == 0) {
    return;
  }
  const Tensor queries = with_dense_channels(q);
  const Tensor keys = with_dense_channels(k);
  const Tensor values = with_dense_channels(v);
  std::vector<uint64_t> streams;
  std::vector<double> logits;
  Tensor held;
  kernels::attention({.dtype = q.dtype(),
                      .shape = shape_of(problem, queries, keys, values, streams),
                      .q = input(queries),
                      .k = input(keys),
                      .v = input(values),
                      .mask = mask_of(mask, keys.shape()[2], held),
                      .documents = documents_of(starts),
                      .slopes = slopes_of(problem),
                      .sinks = sinks_of(sinks, logits),
                      .out = output(result.out),
                      .lse = result.lse.raw(),
                      .max_scores = maxima.defined() ? maxima.data<float>() : nullptr});
}

// Fills dq, dk and dv, or adds to dk and dv with add_dkv, where leaves leave dk unscaled; adds to
// dsinks.
void run_backward(const Problem& problem,
                  const Tensor& q,
                  const Tensor& k,
                  const Tensor& v,
                  const Tensor& mask,
                  const Tensor& starts,
                  const Tensor& sinks,
                  const AttentionResult& result,
                  const Tensor& dy,
                  const AttentionGradients& gradients,
                  const kernels::AttentionLeaves& leaves,
                  bool add_dkv) {
  if (q.numel() == 0) {
    return;
  }
  const Tensor queries = with_dense_channels(q);
  const Tensor keys = with_dense_channels(k);
  const Tensor values = with_dense_channels(v);
  const Tensor dout = with_dense_channels(dy);
  std::vector<uint64_t> streams;
  std::vector<double> logits;
  Tensor held;
  kernels::attention_backward(
      {.dtype = q.dtype(),
       .shape = shape_of(problem, queries, keys, values, streams),
       .q = input(queries),
       .k = input(keys),
       .v = input(values),
       .mask = mask_of(mask, keys.shape()[2], held),
       .documents = documents_of(starts),
       .slopes = slopes_of(problem),
       .sinks = sinks_of(sinks, logits),
       .out = input(result.out),
       .dout = input(dout),
       .lse = result.lse.raw(),
       .dq = output(gradients.dq),
       .dk = output(gradients.dk),
       .dv = output(gradients.dv),
       .add_dkv = add_dkv,
       .scale_dk = !add_dkv || leaves.count == 0,
       .leaves = leaves,
       .dsinks = sinks.defined() ? gradients.dsinks.data<double>() : nullptr,
       .exact_dsinks = gradients.exact_dsinks});
}

struct Attention {
  static constexpr OpName name = kName;
  Problem problem;
  Tensor maxima;  // max_logits of the options
  SavedTensor q, k, v, mask, starts, sinks, out, lse;

  // mask_: undefined, or broadcasts to the weights.
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
    const AttentionResult result = {
        empty_by_rows({q_.size(0), q_.size(1), q_.size(2), v_.size(3)}, q_.dtype()),
        empty({q_.shape()[0], q_.shape()[1], q_.shape()[2]}, wide_dtype(q_.dtype()))};
    run_forward(problem, q_, k_, v_, mask_, starts_, sinks_, maxima, result);
    maxima = {};
    lse.save(result.lse);
    return out.save_output(result.out);
  }

  TensorList backward(const Tensor& dy, NeedsGrad /*needs*/) const {
    const Tensor seen = mask;
    const Tensor first_keys = starts;
    const Tensor logits = sinks;
    if (grad_enabled()) {
      const auto twin = [&](const TensorList& in) {
        return composed_twin(in[0], in[1], in[2], seen, first_keys,
                             logits.defined() ? in[3] : Tensor(), problem);
      };
      TensorList inputs = {q, k, v};
      if (logits.defined()) {
        inputs.push_back(logits);
      }
      TensorList gradients = vjp(twin, dy, inputs);
      const Tensor dsinks = logits.defined() ? gradients[3] : Tensor();
      return {gradients[0], gradients[1], gradients[2], Tensor(), Tensor(), dsinks};
    }
    const Tensor queries = q;
    const Tensor keys = k;
    const Tensor values = v;
    AttentionGradients gradients = empty_gradients(queries, keys, values, dy.dtype());
    const Tensor& dq = gradients.dq;
    const Tensor& dk = gradients.dk;
    const Tensor& dv = gradients.dv;
    set_sink_gradients(logits, gradients);
    const auto all = [&]() -> TensorList {
      return {dq, dk, dv, Tensor(), Tensor(), sink_gradient(logits, gradients)};
    };
    if (queries.numel() == 0) {  // nobody looked at a key
      copy_values(broadcast_view(scalar(0, dy.dtype()), dk.shape()), dk);
      copy_values(broadcast_view(scalar(0, dy.dtype()), dv.shape()), dv);
      return all();
    }
    run_backward(problem, queries, keys, values, seen, first_keys, logits, {out, lse}, dy,
                 gradients, attention_leaves(queries.size(2)), false);
    return all();
  }
};

}  // namespace

Tensor document_starts(std::span<const std::vector<int64_t>> starts, int64_t length) {
  Tensor out = full({static_cast<int64_t>(starts.size()), length}, 0, kInt32);
  int32_t* row = out.data<int32_t>();
  for (size_t b = 0; b < starts.size(); ++b, row += length) {
    int64_t before = -1;
    for (const int64_t start : starts[b]) {
      check<ValueError>(start > before && start < length, "document_starts: the documents of row ",
                        b, " must begin at ascending positions below ", length, ", got ", start,
                        before < 0 ? "" : concat(" after ", before));
      std::fill(row + start, row + length, static_cast<int32_t>(start));
      before = start;
    }
  }
  return out;
}

std::vector<double> alibi_slopes(int64_t heads) {
  check<ValueError>(heads >= 1, "alibi_slopes: expected at least one head, got ", heads);
  int64_t power = 1;
  while (2 * power <= heads) {
    power *= 2;
  }
  std::vector<double> slopes;
  for (int64_t h = 1; h <= power; ++h) {
    slopes.push_back(std::exp2(-8.0 * static_cast<double>(h) / static_cast<double>(power)));
  }
  for (int64_t h = 1; static_cast<int64_t>(slopes.size()) < heads; h += 2) {
    slopes.push_back(std::exp2(-4.0 * static_cast<double>(h) / static_cast<double>(power)));
  }
  return slopes;
}

Tensor scaled_dot_product_attention(const Tensor& q,
                                    const Tensor& k,
                                    const Tensor& v,
                                    const AttentionOptions& options) {
  check_defined("scaled_dot_product_attention", q, "q", k, "k", v, "v");
  const Problem problem = pose(q, k, v, options);
  const Tensor sinks = sinks_for(options.sinks, q.dtype());
  return apply_op(Attention{problem, options.max_logits, {}, {}, {}, {}, {}, {}, {}, {}}, q, k, v,
                  options.mask, options.document_starts, sinks);
}

Tensor composed_attention(const Tensor& q,
                          const Tensor& k,
                          const Tensor& v,
                          const AttentionOptions& options,
                          std::optional<DType> softmax_dtype) {
  const Problem problem = pose(q, k, v, options);
  check<RuntimeError>(!in_exact() || q.dtype() == kFloat64,
                      "composed_attention: exact mode has no attention made of single ops, whose "
                      "sums over queries depend on how these are divided; take the fused one");
  const DType softmax = softmax_dtype.value_or(wide_dtype(q.dtype()));
  check_floating("composed_attention: softmax_dtype", softmax);
  return composed(q, k, v, options.mask, options.document_starts, options.sinks, problem,
                  {q.dtype(), softmax}, options.max_logits);
}

namespace {

void check_destination(const char* what, const Tensor& x, const Shape& shape, DType dtype) {
  check<ValueError>(
      x.shape() == shape && x.dtype() == dtype && (shape.back() <= 1 || x.strides().back() == 1),
      kName, ": ", what, " must be ", name_of(dtype), " ", shape, " with a dense last axis, got ",
      describe(x));
}

void check_result(const Tensor& q, const Tensor& v, const AttentionResult& result) {
  const Shape& s = q.shape();
  check_destination("out", result.out, {s[0], s[1], s[2], v.size(3)}, q.dtype());
  check<ValueError>(result.lse.shape() == Shape{s[0], s[1], s[2]} &&
                        result.lse.dtype() == wide_dtype(q.dtype()) && result.lse.is_contiguous(),
                    kName, ": lse must be contiguous ", name_of(wide_dtype(q.dtype())), " ",
                    Shape{s[0], s[1], s[2]}, ", got ", describe(result.lse));
}

}  // namespace

kernels::AttentionLeaves attention_leaves(int64_t q_len) {
  if (!in_exact()) {
    return {};
  }
  const ExactTokens& tokens = exact_tokens();
  const bool cuts = tokens.samples > 0 && tokens.length == q_len && tokens.leaves > 0 &&
                    q_len % (2 * tokens.leaves) == 0;
  return {.count = cuts ? tokens.leaves : 1};
}

void set_sink_gradients(const Tensor& sinks, AttentionGradients& gradients) {
  if (!sinks.defined()) {
    return;
  }
  gradients.dsinks = in_exact() ? exact_main_grad(sinks) : Tensor();
  gradients.exact_dsinks = gradients.dsinks.defined();
  if (!gradients.exact_dsinks) {
    gradients.dsinks = zeros(sinks.shape(), kFloat64);
  }
}

Tensor sink_gradient(const Tensor& sinks, const AttentionGradients& gradients) {
  return !sinks.defined() || gradients.exact_dsinks ? gradients.dsinks
                                                    : gradients.dsinks.to(sinks.dtype());
}

Tensor sinks_for(const Tensor& sinks, DType dtype) {
  return !sinks.defined() || in_exact() ? sinks : sinks.to(wide_dtype(dtype));
}

double attention_scale(const AttentionOptions& options, int64_t head_dim) {
  return options.scale.value_or(1 / std::sqrt(std::max(1.0, static_cast<double>(head_dim))));
}

void attention_forward(const Tensor& q,
                       const Tensor& k,
                       const Tensor& v,
                       const AttentionOptions& options,
                       const AttentionResult& result) {
  const Problem problem = pose(q, k, v, options);
  check_result(q, v, result);
  run_forward(problem, q, k, v, options.mask, options.document_starts, options.sinks,
              options.max_logits, result);
}

void attention_backward(const Tensor& q,
                        const Tensor& k,
                        const Tensor& v,
                        const AttentionOptions& options,
                        const AttentionResult& result,
                        const Tensor& dout,
                        const AttentionGradients& gradients,
                        const kernels::AttentionLeaves& leaves) {
  const Problem problem = pose(q, k, v, options);
  check_result(q, v, result);
  check_destination("dq", gradients.dq, q.shape(), q.dtype());
  check_destination("dk", gradients.dk, k.shape(), wide_dtype(k.dtype()));
  if (options.sinks.defined()) {
    check<ValueError>(gradients.dsinks.defined() && gradients.dsinks.dtype() == kFloat64 &&
                          gradients.dsinks.shape() == options.sinks.shape() &&
                          gradients.dsinks.is_contiguous(),
                      kName, ": dsinks must be contiguous float64 ", options.sinks.shape());
  }
  check_destination("dv", gradients.dv, v.shape(), wide_dtype(v.dtype()));
  run_backward(problem, q, k, v, options.mask, options.document_starts, options.sinks, result, dout,
               gradients, leaves, /*add_dkv=*/true);
}

}  // namespace tapestry

#include "nn/layers/multihead_attention.h"

#include <cmath>

#include "autograd/ops/attention.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/random.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/softmax.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "nn/init.h"

namespace tapestry::nn {

namespace {

constexpr const char* kName = "MultiheadAttention";

Tensor in_projection(int64_t embed_dim, int64_t num_heads, DType dtype) {
  check<ValueError>(embed_dim > 0 && num_heads > 0 && embed_dim % num_heads == 0, kName,
                    ": embed_dim ", embed_dim, " is not a multiple of num_heads ", num_heads);
  Tensor weight = empty({3 * embed_dim, embed_dim}, dtype);
  init::xavier_uniform_(weight);
  return weight;
}

// [B, L, E] as [B, num_heads, L, D].
Tensor heads(const Tensor& x, int64_t num_heads) {
  return reshape(x, {x.size(0), x.size(1), num_heads, x.size(2) / num_heads}).permute({0, 2, 1, 3});
}

// All masks of a call, each broadcasting to [B, num_heads, L, S].
struct Combined {
  Tensor blocked;  // bool, true: does not see; undefined: nothing is blocked
  Tensor added;    // numbers; undefined: none

  void add(const char* what, const Tensor& mask, DType dtype) {
    if (mask.dtype() == kBool) {
      blocked = blocked.defined() ? logical_or(blocked, mask) : mask;
      return;
    }
    check<TypeError>(is_floating(mask.dtype()), kName, ": ", what,
                     " must be bool or floating, got ", describe(mask));
    const Tensor numbers = mask.to(dtype);
    added = added.defined() ? tapestry::add(added, numbers) : numbers;
  }
};

void check_shape(const char* what, const Tensor& mask, const Shape& shape) {
  check<ValueError>(mask.shape() == shape, kName, ": ", what, " must have the shape ", shape,
                    ", got ", describe(mask));
}

}  // namespace

MultiheadAttention::MultiheadAttention(int64_t embed_dim,
                                       int64_t num_heads,
                                       MultiheadAttentionOptions options)
    : num_heads_(num_heads),
      dropout_(options.dropout),
      in_proj_weight_(
          register_parameter("in_proj_weight", in_projection(embed_dim, num_heads, options.dtype))),
      in_proj_bias_(options.bias ? &register_parameter("in_proj_bias",
                                                       zeros({3 * embed_dim}, options.dtype),
                                                       {.decay = false})
                                 : nullptr),
      out_proj_(
          register_module<Linear>("out_proj",
                                  embed_dim,
                                  embed_dim,
                                  LinearOptions{.bias = options.bias, .dtype = options.dtype})) {
  check<ValueError>(dropout_ >= 0 && dropout_ < 1, kName, ": dropout must lie in [0, 1), got ",
                    dropout_);
  if (options.bias) {
    init::zeros_(out_proj_.bias()->detach());
  }
}

std::string MultiheadAttention::extra_repr() const {
  return concat(in_proj_weight_.size(1), ", heads=", num_heads_,
                in_proj_bias_ != nullptr ? ", bias" : "");
}

MultiheadAttention::Projected MultiheadAttention::project(const Tensor& query,
                                                          const Tensor& key,
                                                          const Tensor& value) const {
  const int64_t size = in_proj_weight_.size(1);
  const Tensor bias = in_proj_bias_ != nullptr ? Tensor(*in_proj_bias_) : Tensor();
  TensorList parts;
  if (query.is_same(key) && key.is_same(value)) {
    parts = split(linear(query, in_proj_weight_, bias), size, -1);
  } else {
    const TensorList weights = split(in_proj_weight_, size, 0);
    const TensorList biases = bias.defined() ? split(bias, size, 0) : TensorList(3);
    parts = {linear(query, weights[0], biases[0]), linear(key, weights[1], biases[1]),
             linear(value, weights[2], biases[2])};
  }
  return {heads(parts[0], num_heads_), heads(parts[1], num_heads_), heads(parts[2], num_heads_)};
}

MultiheadAttentionResult MultiheadAttention::forward(const Tensor& query,
                                                     const Tensor& key,
                                                     const Tensor& value,
                                                     const AttentionMasks& masks) {
  const int64_t size = in_proj_weight_.size(1);
  const int64_t axes = query.dim();
  check<ValueError>((axes == 2 || axes == 3) && key.dim() == axes && value.shape() == key.shape() &&
                        query.size(-1) == size && key.size(-1) == size &&
                        (axes == 2 || key.size(0) == query.size(0)),
                    kName, ": needs query [B, L, ", size, "], key and value [B, S, ", size,
                    "], got ", query.shape(), ", ", key.shape(), " and ", value.shape());
  if (axes == 2) {
    AttentionMasks raised = masks;
    if (masks.key_padding_mask.defined()) {
      raised.key_padding_mask = unsqueeze(masks.key_padding_mask, 0);
    }
    const Tensor q = unsqueeze(query, 0);
    const Tensor k = key.is_same(query) ? q : unsqueeze(key, 0);
    const Tensor v = value.is_same(key) ? k : unsqueeze(value, 0);
    MultiheadAttentionResult result = forward(q, k, v, raised);
    result.output = squeeze(result.output, 0);
    if (result.weights.defined()) {
      result.weights = squeeze(result.weights, 0);
    }
    return result;
  }

  const int64_t batch = query.size(0);
  const int64_t queries = query.size(1);
  const int64_t keys = key.size(1);
  const auto [q, k, v] = project(query, key, value);
  Combined combined;
  if (const Tensor& mask = masks.key_padding_mask; mask.defined()) {
    check_shape("key_padding_mask", mask, {batch, keys});
    combined.add("key_padding_mask", mask.view({batch, 1, 1, keys}), q.dtype());
  }
  if (const Tensor& mask = masks.attn_mask; mask.defined()) {
    const bool per_head = mask.dim() == 3;
    check_shape("attn_mask", mask,
                per_head ? Shape{batch * num_heads_, queries, keys} : Shape{queries, keys});
    combined.add("attn_mask", per_head ? reshape(mask, {batch, num_heads_, queries, keys}) : mask,
                 q.dtype());
  }
  const double drop = is_training() ? dropout_ : 0;

  MultiheadAttentionResult result;
  if (!masks.need_weights && !combined.added.defined()) {
    AttentionOptions options{.causal = masks.is_causal, .dropout_p = drop};
    if (combined.blocked.defined()) {
      options.mask = logical_not(combined.blocked);
    }
    result.output = scaled_dot_product_attention(q, k, v, options);
  } else {
    if (masks.is_causal) {
      combined.add("", logical_not(tril(ones({queries, keys}, kBool))), q.dtype());
    }
    const int64_t head_size = size / num_heads_;
    const double scale = 1 / std::sqrt(static_cast<double>(head_size));
    Tensor scores = mul(matmul(q, k.t()), scale);
    if (combined.added.defined()) {
      scores = add(scores, combined.added);
    }
    Tensor weights;
    if (combined.blocked.defined()) {
      // A row of which everything is blocked must not become 0 / 0.
      const double lowest = q.dtype() == kFloat16 ? -6e4 : -1e30;
      weights = softmax(masked_fill(scores, combined.blocked, lowest), -1);
      weights = masked_fill(weights, combined.blocked, 0);
    } else {
      weights = softmax(scores, -1);
    }
    weights = dropout(weights, drop, drop > 0);
    result.output = matmul(weights, v);
    if (masks.need_weights) {
      result.weights = masks.average_attn_weights ? mean(weights, {1}) : weights;
    }
  }
  const Tensor joined = reshape(result.output.permute({0, 2, 1, 3}), {batch, queries, size});
  result.output = out_proj_(joined);
  return result;
}

}  // namespace tapestry::nn

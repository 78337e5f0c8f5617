#include "nn/layers/multihead_attention.h"

#include <cmath>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/random.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/softmax.h"
#include "autograd/ops/transformer/attention.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "nn/init.h"

namespace tapestry::nn {

namespace {

constexpr const char* kName = "MultiheadAttention";

int64_t checked_size(int64_t embed_dim, int64_t num_heads) {
  check<ValueError>(embed_dim > 0 && num_heads > 0 && embed_dim % num_heads == 0, kName,
                    ": embed_dim ", embed_dim, " is not a multiple of num_heads ", num_heads);
  return embed_dim;
}

int64_t size_or(const char* what, int64_t size, int64_t embed_dim) {
  check<ValueError>(size >= 0, kName, ": ", what, " must not be negative, got ", size);
  return size == 0 ? embed_dim : size;
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
    : size_(checked_size(embed_dim, num_heads)),
      key_size_(size_or("kdim", options.kdim, embed_dim)),
      value_size_(size_or("vdim", options.vdim, embed_dim)),
      num_heads_(num_heads),
      dropout_(options.dropout),
      in_proj_weight_(
          projection(is_joined(), "in_proj_weight", {3 * embed_dim, embed_dim}, options.dtype)),
      q_proj_weight_(
          projection(!is_joined(), "q_proj_weight", {embed_dim, embed_dim}, options.dtype)),
      k_proj_weight_(
          projection(!is_joined(), "k_proj_weight", {embed_dim, key_size_}, options.dtype)),
      v_proj_weight_(
          projection(!is_joined(), "v_proj_weight", {embed_dim, value_size_}, options.dtype)),
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

Parameter* MultiheadAttention::projection(bool wanted,
                                          const std::string& name,
                                          const Shape& shape,
                                          DType dtype) {
  if (!wanted) {
    return nullptr;
  }
  Tensor weight = empty(shape, dtype);
  init::xavier_uniform_(weight);
  return &register_parameter(name, weight);
}

std::string MultiheadAttention::extra_repr() const {
  return concat(size_, ", heads=", num_heads_,
                is_joined() ? "" : concat(", kdim=", key_size_, ", vdim=", value_size_),
                in_proj_bias_ != nullptr ? ", bias" : "");
}

MultiheadAttention::Projected MultiheadAttention::project(const Tensor& query,
                                                          const Tensor& key,
                                                          const Tensor& value) const {
  const Tensor bias = in_proj_bias_ != nullptr ? Tensor(*in_proj_bias_) : Tensor();
  TensorList parts;
  if (is_joined() && query.is_same(key) && key.is_same(value)) {
    parts = split(linear(query, *in_proj_weight_, bias), size_, -1);
  } else {
    const TensorList weights = is_joined()
                                   ? split(*in_proj_weight_, size_, 0)
                                   : TensorList{*q_proj_weight_, *k_proj_weight_, *v_proj_weight_};
    const TensorList biases = bias.defined() ? split(bias, size_, 0) : TensorList(3);
    parts = {linear(query, weights[0], biases[0]), linear(key, weights[1], biases[1]),
             linear(value, weights[2], biases[2])};
  }
  return {heads(parts[0], num_heads_), heads(parts[1], num_heads_), heads(parts[2], num_heads_)};
}

MultiheadAttentionResult MultiheadAttention::forward(const Tensor& query,
                                                     const Tensor& key,
                                                     const Tensor& value,
                                                     const AttentionMasks& masks) {
  const int64_t size = size_;
  const int64_t axes = query.dim();
  bool fits = (axes == 2 || axes == 3) && key.dim() == axes && value.dim() == axes &&
              query.size(-1) == size && key.size(-1) == key_size_ &&
              value.size(-1) == value_size_ && key.size(-2) == value.size(-2);
  fits = fits && (axes == 2 || (key.size(0) == query.size(0) && value.size(0) == key.size(0)));
  check<ValueError>(fits, kName, ": needs query [B, L, ", size, "], key [B, S, ", key_size_,
                    "] and value [B, S, ", value_size_, "], got ", query.shape(), ", ", key.shape(),
                    " and ", value.shape());
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

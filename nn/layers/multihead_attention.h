// Attention of several heads with its projections.
#pragma once

#include <string>

#include "nn/layers/linear.h"
#include "nn/module.h"

namespace tapestry::nn {

struct MultiheadAttentionOptions {
  bool bias = true;
  double dropout = 0;  ///< probability, of the attention weights, in training
  DType dtype = kFloat32;
  int64_t kdim = 0;  ///< size of a key; 0: embed_dim
  int64_t vdim = 0;  ///< size of a value; 0: embed_dim
};

/// What a call says beside its three tensors.
struct AttentionMasks {
  /// [B, S]: keys of a sample that nobody looks at (bool: true), or a number added to the scores.
  Tensor key_padding_mask = {};
  /// [L, S], or [B * num_heads, L, S]: pairs that do not see each other (bool: true), or a number
  /// added to the scores.
  Tensor attn_mask = {};
  /// Query i sees keys j <= i, besides the masks.
  bool is_causal = false;
  /// Gives the weights as well, which then exist in memory.
  bool need_weights = false;
  bool average_attn_weights = true;  ///< over heads: [B, L, S] in place of [B, num_heads, L, S]
};

struct MultiheadAttentionResult {
  Tensor output;   ///< [B, L, E]
  Tensor weights;  ///< after dropout; undefined unless they were asked for
};

/// torch.nn.MultiheadAttention with batch_first: softmax(q k^T / sqrt(E / num_heads) + masks) v of
/// each head, where q, k, v are linear in query [B, L, E], key [B, S, kdim] and value [B, S, vdim]
/// (or without B), and a linear layer of the joined heads. Parameters in_proj_weight [3 E, E],
/// in_proj_bias [3 E], out_proj.weight [E, E], out_proj.bias [E], in this order, start values and
/// state names as there; where kdim or vdim is not E, q_proj_weight [E, E], k_proj_weight [E, kdim]
/// and v_proj_weight [E, vdim] take the place of in_proj_weight.
///
/// Runs on scaled_dot_product_attention() unless weights are asked for or a mask holds numbers. A
/// query that sees no key gets the output of zeros (PyTorch: NaN). ValueError if E is not a
/// multiple of num_heads, kdim or vdim is negative, dropout lies outside [0, 1) or shapes do not
/// fit; TypeError for a mask that is neither bool nor floating.
class MultiheadAttention final : public Module {
 public:
  MultiheadAttention(int64_t embed_dim, int64_t num_heads, MultiheadAttentionOptions options = {});

  std::string type_name() const override { return "MultiheadAttention"; }
  std::string extra_repr() const override;
  MultiheadAttentionResult forward(const Tensor& query,
                                   const Tensor& key,
                                   const Tensor& value,
                                   const AttentionMasks& masks = {});
  MultiheadAttentionResult operator()(const Tensor& query,
                                      const Tensor& key,
                                      const Tensor& value,
                                      const AttentionMasks& masks = {}) {
    return forward(query, key, value, masks);
  }

 private:
  struct Projected {
    Tensor q, k, v;  // [B, num_heads, L or S, D]
  };
  bool is_joined() const { return key_size_ == size_ && value_size_ == size_; }
  Projected project(const Tensor& query, const Tensor& key, const Tensor& value) const;
  Parameter* projection(bool wanted, const std::string& name, const Shape& shape, DType dtype);

  int64_t size_;  // E
  int64_t key_size_;
  int64_t value_size_;
  int64_t num_heads_;
  double dropout_;
  Parameter* in_proj_weight_;  // or the next three
  Parameter* q_proj_weight_;
  Parameter* k_proj_weight_;
  Parameter* v_proj_weight_;
  Parameter* in_proj_bias_ = nullptr;
  Linear& out_proj_;
};

}  // namespace tapestry::nn

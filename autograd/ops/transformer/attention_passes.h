// The two passes of scaled_dot_product_attention() apart, for ops that do something around them:
// context parallelism, where queries meet keys that are there for a moment only.
//
// Neither is recorded. Options as there, except that numbers for dropout must come from a fixed
// key, so that both passes see the same. What is written is given, with the shape and dtype that is
// said and a dense last axis (ValueError).
#pragma once

#include "autograd/kernels/attention/attention.h"
#include "autograd/ops/transformer/attention.h"

namespace tapestry {

/// What the forward pass gives, and the backward pass needs.
struct AttentionResult {
  Tensor out;  ///< [B,H,S,E] in q's dtype, E the head size of v
  Tensor lse;  ///< [B,H,S], contiguous, float32 (float64 for float64): log of the sum of exponents
};

struct AttentionGradients {
  Tensor dq;                  ///< [B,H,S,D] in q's dtype
  Tensor dk;                  ///< [B,G,T,D], float32 (float64 for float64)
  Tensor dv;                  ///< [B,G,T,E], as dk
  Tensor dsinks = {};         ///< [H], contiguous, float64; undefined without sinks
  bool exact_dsinks = false;  ///< dsinks holds exact sums (kernels/exact_sums.h)
};

/// How exact mode cuts the sums over `q_len` queries of a call: as exact_tokens() says of tokens,
/// if that is how many there are, else not at all. Outside of exact mode: count 0.
kernels::AttentionLeaves attention_leaves(int64_t q_len);

/// The exact sums that a gradient of `sinks` is to be added to, or zeros for one of its own; says
/// so in the gradients. Nothing without sinks.
void set_sink_gradients(const Tensor& sinks, AttentionGradients& gradients);
/// That gradient, as an op returns it.
Tensor sink_gradient(const Tensor& sinks, const AttentionGradients& gradients);
/// The sinks of a call as its op takes them: exact mode must see the leaf.
Tensor sinks_for(const Tensor& sinks, DType dtype);
/// options.scale, or its default for `head_dim` channels.
double attention_scale(const AttentionOptions& options, int64_t head_dim);

/// Overwrites `result`.
void attention_forward(const Tensor& q,
                       const Tensor& k,
                       const Tensor& v,
                       const AttentionOptions& options,
                       const AttentionResult& result);

/// Overwrites dq and adds to dk, dv and dsinks, which several calls with different queries may
/// share. With leaves, dk is without its factor scale, which sums over ranks need last.
void attention_backward(const Tensor& q,
                        const Tensor& k,
                        const Tensor& v,
                        const AttentionOptions& options,
                        const AttentionResult& result,
                        const Tensor& dout,
                        const AttentionGradients& gradients,
                        const kernels::AttentionLeaves& leaves = {});

}  // namespace tapestry

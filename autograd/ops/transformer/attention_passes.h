// The two passes of scaled_dot_product_attention() apart, for ops that do something around them:
// context parallelism, where queries meet keys that are there for a moment only.
//
// Neither is recorded. Options as there, except that numbers for dropout must come from a fixed
// key, so that both passes see the same. What is written is given, with the shape and dtype that is
// said and a dense last axis (ValueError).
#pragma once

#include "autograd/ops/transformer/attention.h"

namespace tapestry {

/// What the forward pass gives, and the backward pass needs.
struct AttentionResult {
  Tensor out;  ///< [B,H,S,E] in q's dtype, E the head size of v
  Tensor lse;  ///< [B,H,S], contiguous, float32 (float64 for float64): log of the sum of exponents
};

struct AttentionGradients {
  Tensor dq;           ///< [B,H,S,D] in q's dtype
  Tensor dk;           ///< [B,G,T,D], float32 (float64 for float64)
  Tensor dv;           ///< [B,G,T,E], as dk
  Tensor dsinks = {};  ///< [H], contiguous, float64; undefined without sinks
};

/// Overwrites `result`.
void attention_forward(const Tensor& q,
                       const Tensor& k,
                       const Tensor& v,
                       const AttentionOptions& options,
                       const AttentionResult& result);

/// Overwrites dq and adds to dk, dv and dsinks, which several calls with different queries may
/// share.
void attention_backward(const Tensor& q,
                        const Tensor& k,
                        const Tensor& v,
                        const AttentionOptions& options,
                        const AttentionResult& result,
                        const Tensor& dout,
                        const AttentionGradients& gradients);

}  // namespace tapestry

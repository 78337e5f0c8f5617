// The two passes of gated_delta_rule() apart, for ops that do something around them: context
// parallelism, where a rank has some of the tokens and is handed the state before them.
//
// Neither is recorded. Arguments and options as there, but that g, beta and the initial state must
// be float32 (float64 for float64 qkv; TypeError); wants_final_state is not looked at. What is
// written is given, contiguous and of the shape and dtype that is said (ValueError); what is
// undefined is not wanted. States have that dtype too.
//
// A rank that waits for nothing but the state can take the short way first: a forward pass without
// `out` makes the states in about 0.6 of the time, and gated_delta_outputs() makes `out` of them
// when the final state is on its way. Likewise a backward pass without dqkv makes dinitial alone.
#pragma once

#include "autograd/ops/transformer/gated_delta_rule.h"

namespace tapestry {

/// The shape of the states before each chunk of 64 tokens but the first: [B, Hv, chunks - 1, dk,
/// dv].
Shape gated_delta_states_shape(int64_t batch, int64_t tokens, const GatedDeltaOptions& options);

struct GatedDeltaPass {
  Tensor out = {};          ///< [B, S, Hv, dv] in qkv's dtype
  Tensor states = {};       ///< gated_delta_states_shape()
  Tensor final_state = {};  ///< [B, Hv, dk, dv]
};

/// Overwrites what is defined of `to`.
void gated_delta_forward(const Tensor& qkv,
                         const Tensor& g,
                         const Tensor& beta,
                         const GatedDeltaOptions& options,
                         const GatedDeltaPass& to);

/// Overwrites out and final_state, from the states that gated_delta_forward() has written for the
/// same arguments: the same bits, all chunks at once.
void gated_delta_outputs(const Tensor& qkv,
                         const Tensor& g,
                         const Tensor& beta,
                         const GatedDeltaOptions& options,
                         const GatedDeltaPass& to);

struct GatedDeltaGradients {
  Tensor dqkv = {};      ///< as qkv, contiguous
  Tensor dg = {};        ///< as g; with dqkv
  Tensor dbeta = {};     ///< as beta; with dqkv
  Tensor dinitial = {};  ///< [B, Hv, dk, dv]
};

/// Overwrites what is defined of `gradients`. dout [B, S, Hv, dv] in qkv's dtype and dfinal, the
/// gradient of the final state, may be undefined: zeros. states as gated_delta_forward() has
/// written them, which dinitial alone does not need.
void gated_delta_backward(const Tensor& qkv,
                          const Tensor& g,
                          const Tensor& beta,
                          const GatedDeltaOptions& options,
                          const Tensor& states,
                          const Tensor& dout,
                          const Tensor& dfinal,
                          const GatedDeltaGradients& gradients);

}  // namespace tapestry

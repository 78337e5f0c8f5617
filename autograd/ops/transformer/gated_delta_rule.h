// Linear attention by the gated delta rule, as in Qwen3-Next, Qwen3.5 and OLMo hybrid models.
#pragma once

#include <cstdint>
#include <span>

#include "autograd/tensor/tensor.h"

namespace tapestry {

struct GatedDeltaOptions {
  /// Hk heads of q and k, Hv of v; value head h uses key head h / (Hv / Hk).
  int64_t key_heads = 1;
  int64_t value_heads = 1;
  /// Channels of a head of q and k, and of one of v: dk and dv.
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  /// Added to the sum of squares under the root of the l2 norms of q and k.
  double eps = 1e-6;
  /// int32 [B or 1, N], N >= first_position + S: where the document of the token at each position
  /// begins, as AttentionOptions::document_starts. The state is reset to zeros where a document
  /// begins behind position 0; one that begins at 0 goes on from the initial state. Undefined: one
  /// document.
  Tensor document_starts = {};
  /// Position of the first token, from which document_starts are read.
  int64_t first_position = 0;
  /// [B, Hv, dk, dv], floating; differentiable: the state before the first token. Undefined: zeros.
  Tensor initial_state = {};
  /// Whether the state after the last token is wanted.
  bool wants_final_state = false;
};

struct GatedDeltaResult {
  Tensor out;          ///< [B, S, Hv, dv] in qkv's dtype
  Tensor final_state;  ///< [B, Hv, dk, dv], float32 (float64 for float64); undefined if not wanted
};

/// For each value head, with a state M [dk, dv],
///
///   M <- e^g_t M; delta = beta_t (v_t - M^T k_t); M <- M + k_t delta^T; out_t = M^T q_t
///
/// where k = k' / sqrt(k' . k' + eps) and q = q' / sqrt(q' . q' + eps) / sqrt(dk) of the rows
/// given.
///
/// qkv [B, S, 2 Hk dk + Hv dv], floating: q of all heads, k of all heads, v of all heads; a view
/// with any strides, whose last axis is copied if it is not dense. g (log decay, at most 0) and
/// beta [B, S, Hv], floating, are taken in float32. All is computed in float32 (float64 for
/// float64) and out is rounded once. Everything is differentiable.
///
/// Tokens are taken in chunks of 64, as products of matrices, on the threads of the team; the bits
/// do not depend on how many there are. Saves qkv, g, beta and the states before each chunk but the
/// first: dk dv / 16 bytes for each token and value head. In a RecomputeScope out is made again
/// from these states, which stay: all chunks at once, without the pass from token to token.
///
/// TypeError if qkv, g, beta or initial_state are not floating or document_starts not int32;
/// ValueError if shapes disagree, Hk does not divide Hv, a size is below 1, eps is negative or
/// document_starts are not as they have to be. Sources: Yang et al. 2024, arXiv:2412.06464 (the
/// rule) and arXiv:2406.06484 (chunks).
GatedDeltaResult gated_delta_rule(const Tensor& qkv,
                                  const Tensor& g,
                                  const Tensor& beta,
                                  const GatedDeltaOptions& options);

/// The same as a loop over the tokens, in ops with a backward each.
GatedDeltaResult composed_gated_delta_rule(const Tensor& qkv,
                                           const Tensor& g,
                                           const Tensor& beta,
                                           const GatedDeltaOptions& options);

/// One token of each of M texts: qkv [M, 2 Hk dk + Hv dv]; g and beta [M, Hv]; out [M, Hv, dv] in
/// qkv's dtype. Text m has its state in slot slots[m] of state [slots, Hv, dk, dv], contiguous
/// float32 (float64 for float64 qkv), which is read once and written once. Of the options only
/// sizes and eps count: the others must have their defaults. A text's bits do not depend on the
/// other texts.
///
/// There is no gradient: RuntimeError if grad mode is on and an input wants one. TypeError and
/// ValueError as above, and if the state does not fit, or slots are not M different ones that it
/// has.
Tensor gated_delta_step(const Tensor& qkv,
                        const Tensor& g,
                        const Tensor& beta,
                        const Tensor& state,
                        std::span<const int64_t> slots,
                        const GatedDeltaOptions& options);

struct GatedDeltaGates {
  Tensor g;     ///< log decay, - e^A_log softplus(a + dt_bias)
  Tensor beta;  ///< beta_scale sigmoid(b)
};

/// The gates of gated_delta_rule() from what a layer computes: a and b [.., Hv]; A_log and dt_bias
/// [Hv], all floating; results in float32 (float64 if a is), in which they are computed. beta_scale
/// is 2 where the state may have negative eigenvalues, else 1. ValueError if shapes disagree or
/// beta_scale is not above 0; TypeError if something is not floating.
GatedDeltaGates gated_delta_gates(const Tensor& a,
                                  const Tensor& b,
                                  const Tensor& a_log,
                                  const Tensor& dt_bias,
                                  double beta_scale = 1);

}  // namespace tapestry

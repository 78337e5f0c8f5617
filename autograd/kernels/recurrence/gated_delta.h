// The gated delta rule: a state S [dk, dv] of each value head that forgets, and corrects what it
// answers to a key.
//
//   S <- e^g_t S; delta = beta_t (v_t - S^T k_t); S <- S + k_t delta^T; o_t = S^T q_t
//
// with q and k divided by their l2 norms, and q also by sqrt(dk). Sources: Yang et al. 2024, Gated
// Delta Networks, arXiv:2412.06464; the form in chunks: Yang et al. 2024, arXiv:2406.06484.
//
// Tokens are taken in chunks of kDeltaChunk, counted from the first. Inside a chunk, with G the
// running sum of g, E = e^G, D_ts = e^(G_t - G_s) for s <= t, and S the state before the chunk,
//
//   (I + A) U = diag(beta) (V - diag(E) K S),  A = the part below the diagonal of
//                                                  diag(beta) (K K^T * D)
//   O  = diag(E) Q S + (Q K^T * D) U
//   S' = e^G_last S + (diag(e^(G_last - G)) K)^T U
//
// so that all but the states are products of matrices, and the state is needed at the borders of
// chunks only. Where a document begins, D, E and e^(G_last - G) are 0 across its border.
//
// All is computed in float32 (float64 for float64), each number by the same operations however many
// threads there are and whichever of the functions below computes it.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

inline constexpr int64_t kDeltaChunk = 64;

/// Rows [batch, seq, n] whose last axis is dense; strides in elements.
struct DeltaRows {
  const void* data = nullptr;
  int64_t batch = 0;
  int64_t row = 0;
};

/// What all passes are given. A row of qkv holds q of all key heads, k of all key heads, v of all
/// value heads. Value head h belongs to key head h / (value_heads / key_heads).
struct DeltaProblem {
  DType dtype = kFloat32;  ///< of qkv, out and their gradients
  int64_t batch = 0;
  int64_t seq = 0;
  int64_t key_heads = 0;
  int64_t value_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  double eps = 0;  ///< added to the sums of squares of q and k
  DeltaRows qkv = {};
  const void* g = nullptr;     ///< [batch, seq, value_heads] in the compute dtype
  const void* beta = nullptr;  ///< as g
  /// At the position of each token: where its document begins; null: one document. The first token
  /// has position `first_position`. Documents that begin at 0 go on from the initial state.
  const int32_t* starts = nullptr;
  int64_t starts_batch = 0;  ///< from one sample to the next; 0: the same for all
  int64_t first_position = 0;
  const void* initial = nullptr;  ///< [batch, value_heads, dk, dv], compute dtype; null: zeros

  int64_t chunks() const { return (seq + kDeltaChunk - 1) / kDeltaChunk; }
  int64_t chunks_after_first() const { return chunks() > 0 ? chunks() - 1 : 0; }
};

/// States are [batch, value_heads, chunks - 1, dk, dv]: those before each chunk but the first.
struct DeltaForward {
  void* out = nullptr;     ///< [batch, seq, value_heads, dv]; null: not wanted
  void* states = nullptr;  ///< compute dtype; null: not kept
  void* final = nullptr;   ///< [batch, value_heads, dk, dv], compute dtype; null: not wanted
};
void gated_delta(const DeltaProblem& problem, const DeltaForward& to);

/// The same out and final state from the states: all chunks at once.
void gated_delta_again(const DeltaProblem& problem, const void* states, void* out, void* final);

struct DeltaBackward {
  const void* states = nullptr;
  DeltaRows dout = {};           ///< rows of value_heads dv; null: zeros
  const void* dfinal = nullptr;  ///< gradient of the final state; null: zeros
  void* dqkv = nullptr;          ///< [batch, seq, row of qkv]; null: only dinitial is wanted
  void* dg = nullptr;            ///< as g; with dqkv
  void* dbeta = nullptr;         ///< as g; with dqkv
  void* dinitial = nullptr;      ///< as the initial state; null: not wanted
};
void gated_delta_backward(const DeltaProblem& problem, const DeltaBackward& to);

/// One token of each of `texts` texts, whose states change in place. problem.seq is 1 and
/// problem.batch the number of texts; starts and initial are not looked at.
struct DeltaStep {
  void* states = nullptr;          ///< [slots, value_heads, dk, dv], compute dtype
  const int64_t* slots = nullptr;  ///< [texts], no two alike
  void* out = nullptr;             ///< [texts, value_heads, dv]
};
void gated_delta_step(const DeltaProblem& problem, const DeltaStep& to);

/// FLOPs of a forward pass by the formulas above, a product with a triangle counted half. Backward
/// counts twice as many: what it computes a second time is not counted.
double gated_delta_flops(const DeltaProblem& problem);

}  // namespace tapestry::kernels

// Mamba-2's recurrence (state-space duality) in chunks of tokens. Source: Dao and Gu 2024,
// arXiv:2405.21060, section 6.
//
// With H heads of p channels, G groups, states of size N, and for each token and head the step
//   D_t = clamp(softplus(dt_t + dt_bias), min, max),
// the state S [p,N] of a head of group g follows
//   S_t = e^(a D_t) S_(t-1) + D_t x_t B_t^T,   y_t = S_t C_t + d x_t,
// where a < 0 and d belong to the head and B_t, C_t to its group, head h being of group h / (H/G).
//
// A chunk of tokens needs the state before it alone: with G the running sum of a D inside the
// chunk, E = e^G, W_ts = e^(G_t - G_s) for s <= t and X' = diag(D) X,
//   Y = ((C B^T) o W) X' + diag(E) C S^T + d X,   S' = e^(G_last) S + X'^T diag(e^(G_last - G)) B.
// So one pass over the chunks makes the states at their borders, and the rest is independent from
// chunk to chunk. All exponents are at most 0. C B^T is computed once for the heads of a group, and
// in the backward pass so are the products that give the gradients of B and C.
//
// Rows of x, B and C have one floating dtype; dt, d, dt_bias and states have its compute type
// (float32, float64 for float64), in which everything is computed. No result depends on the number
// of threads.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

/// What all passes share.
struct StateSpaceCall {
  DType dtype = kFloat32;  ///< of xbc, y and their gradients
  int64_t batch = 0;
  int64_t tokens = 0;  ///< of each row of the batch
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t groups = 0;  ///< divides heads
  int64_t state_size = 0;
  int64_t chunk = 0;  ///< tokens, 1 to kMostChunk
  double step_min = 0;
  double step_max = 0;
  /// [batch * tokens, H p + 2 G N], rows `xbc_stride` apart: x of all heads, B and C of all groups.
  const void* xbc = nullptr;
  int64_t xbc_stride = 0;
  const void* dt = nullptr;  ///< [batch * tokens, H]
  int64_t dt_stride = 0;
  const double* a = nullptr;      ///< [H], below 0
  const void* d = nullptr;        ///< [H]
  const void* dt_bias = nullptr;  ///< [H]
  /// [batch or 1, tokens]: the token at which the document of each begins, below 0 where it begins
  /// with the state that the row is given. Along a row the numbers do not decrease, none lies
  /// behind its own token, and each number t from 0 on stands at token t too. A document that
  /// begins in the row begins with a state of zeros. Null: one document.
  const int32_t* first = nullptr;
  int64_t first_batch = 0;  ///< elements from one row to the next
  /// [batch, chunks + 1, H, padded N, padded p]: the state before each chunk, and after the last.
  void* borders = nullptr;
};

inline constexpr int64_t kMostChunk = 256;

/// Sizes as states in `borders` have them, whose other elements are 0.
inline constexpr int64_t state_space_padded(int64_t n) { return (n + 15) / 16 * 16; }
inline constexpr int64_t state_space_chunks(int64_t tokens, int64_t chunk) {
  return (tokens + chunk - 1) / chunk;
}

/// Of the products of each pass, as the formulas have them: of scores only those that tokens of one
/// chunk see. The backward pass takes twice the sum.
struct StateSpaceFlops {
  double states;
  double output;
};
StateSpaceFlops state_space_flops(const StateSpaceCall& call);

/// `borders`, whose states before the first chunk are there.
void state_space_states(const StateSpaceCall& call);
/// y [batch * tokens, H p] from `borders`.
void state_space_output(const StateSpaceCall& call, void* y);
/// Both in turn, a few chunks at a time.
void state_space(const StateSpaceCall& call, void* y);

/// Gradients from dy [batch * tokens, H p], rows dy_stride apart, and from that of the states after
/// the last chunk.
struct StateSpaceGradients {
  const void* dy = nullptr;
  int64_t dy_stride = 0;
  /// [batch, H, padded N, padded p], in and out: the gradient of the states after the last chunk,
  /// then that of the states before the first.
  void* dstates = nullptr;
  void* dxbc = nullptr;        ///< [batch * tokens, H p + 2 G N], dense
  void* ddt = nullptr;         ///< [batch * tokens, H], dense, compute type
  double* da = nullptr;        ///< [H]
  double* dd = nullptr;        ///< [H]
  double* ddt_bias = nullptr;  ///< [H]
};
void state_space_backward(const StateSpaceCall& call, const StateSpaceGradients& gradients);
/// The same for dstates alone, which costs a quarter of it; other gradients may be null.
void state_space_backward_states(const StateSpaceCall& call, const StateSpaceGradients& gradients);

/// out [batch, H] (float64): the sum over the tokens of a D, -inf where a document begins: e to it
/// is what the states before the first token are multiplied by.
void state_space_log_decay(const StateSpaceCall& call, double* out);

/// States [count, p, N] dense as states [count, padded N, padded p], the rest 0, and back; float32
/// or float64.
void pad_states(DType dtype, int64_t count, int64_t p, int64_t n, const void* dense, void* padded);
void unpad_states(
    DType dtype, int64_t count, int64_t p, int64_t n, const void* padded, void* dense);

/// One token each of `batch` texts. `tokens`, `chunk`, `first` and `borders` are not read; the
/// state of text m is number slots[m] of states [*, H, p, N], written in place. y [batch, H p].
struct StateSpaceStep {
  StateSpaceCall call;
  const int64_t* slots = nullptr;
  void* states = nullptr;
  void* y = nullptr;
};
void state_space_step(const StateSpaceStep& step);

}  // namespace tapestry::kernels

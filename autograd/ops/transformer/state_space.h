// The recurrence of Mamba-2 layers (state-space duality).
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "autograd/tensor/tensor.h"

namespace tapestry {

struct StateSpaceOptions {
  int64_t heads = 0;       ///< H
  int64_t head_dim = 0;    ///< p
  int64_t groups = 1;      ///< G, divides H; head h uses B and C of group h / (H / G)
  int64_t state_size = 0;  ///< N
  /// Bounds of the steps, 0 <= min <= max. A step that they change gives dt no gradient.
  double step_min = 0;
  double step_max = std::numeric_limits<double>::infinity();
  /// int32 [B or 1, L], L >= position_offset + S, as AttentionOptions::document_starts: where the
  /// document of the token at each position begins. There the state is reset to zeros, but not at
  /// position 0, where it is initial_state. Undefined: one document.
  Tensor document_starts = {};
  /// Position of the first token: document_starts counts from here. A document that began before
  /// it goes on with initial_state.
  int64_t position_offset = 0;
  /// [B, H, p, N], float32 (float64 for float64), differentiable: the state before the first token.
  /// Undefined: zeros.
  Tensor initial_state = {};
  /// Whether the state after the last token is wanted.
  bool want_final_state = false;
  /// Tokens, 1 to 256, that are computed together; states are kept between such chunks. Results
  /// depend on it by rounding alone.
  int64_t chunk_size = 128;
};

struct StateSpaceResult {
  Tensor y;            ///< [B, S, H p] in xbc's dtype
  Tensor final_state;  ///< [B, H, p, N], float32 (float64 for float64); undefined if not wanted
};

/// For each head, with its channels x_t [p], B_t and C_t [N] of its group, and the state S [p, N]:
///   step_t = clamp(softplus(dt_t + dt_bias), step_min, step_max)
///   S <- e^(-e^a_log step_t) S + step_t x_t B_t^T,   y_t = S C_t + d x_t.
///
/// xbc [B, S, H p + 2 G N]: x of all heads, B of all groups, C of all groups, side by side, as the
/// convolution before it gives them; any strides, those with a dense last axis and rows that lie
/// evenly are read in place. dt [B, S, H]; a_log, d and dt_bias [H]. xbc is floating, the others
/// have its dtype or float32 (TypeError). Everything is computed in float32 (float64 for float64),
/// and y is rounded once. ValueError for shapes, bounds or a chunk_size that do not fit,
/// document_starts that decrease or lie behind their position, or an initial_state of another
/// shape; TypeError for its dtype, or document_starts that are not int32.
///
/// Saves its inputs and one state for each chunk of tokens. In a RecomputeScope the states are
/// kept; y, made again, comes from them without another pass from token to token. Results do not
/// depend on the number of threads. Gradients of gradients go through composed_state_space(), which
/// has S x S matrices. Source: Dao and Gu 2024, arXiv:2405.21060.
StateSpaceResult state_space(const Tensor& xbc,
                             const Tensor& dt,
                             const Tensor& a_log,
                             const Tensor& d,
                             const Tensor& dt_bias,
                             const StateSpaceOptions& options);

/// The same function in elementary ops, as one chunk of all tokens.
StateSpaceResult composed_state_space(const Tensor& xbc,
                                      const Tensor& dt,
                                      const Tensor& a_log,
                                      const Tensor& d,
                                      const Tensor& dt_bias,
                                      const StateSpaceOptions& options);

/// One token each of M texts, for generation: xbc [M, H p + 2 G N], dt [M, H]; y [M, H p]. The
/// state of text m is states[slots[m]] of states [slots, H, p, N], contiguous, float32 (float64 for
/// float64); it is brought forward in place. Of options the sizes and the bounds are used. A text's
/// result does not depend on the others. There is no gradient: RuntimeError if grad mode is on and
/// an input wants one. Errors as above; ValueError for a slot that is not there or stands twice,
/// TypeError for states of another dtype.
Tensor state_space_step(const Tensor& xbc,
                        const Tensor& dt,
                        const Tensor& a_log,
                        const Tensor& d,
                        const Tensor& dt_bias,
                        const StateSpaceOptions& options,
                        const Tensor& states,
                        const std::vector<int64_t>& slots);

}  // namespace tapestry

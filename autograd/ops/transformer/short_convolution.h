// The short convolution in front of linear attention and state space models.
#pragma once

#include <cstdint>
#include <span>

#include "autograd/tensor/tensor.h"

namespace tapestry {

struct ShortConvolutionOptions {
  /// [C], floating; undefined: none.
  Tensor bias = {};
  /// Whether y = silu(z), z / (1 + e^-z), else y = z.
  bool silu = false;
  /// int32 [B or 1, N], N >= first_position + S: where the document of the token at each position
  /// begins, as AttentionOptions::document_starts. No window reaches across; a document that begins
  /// at position 0 sees `previous`. Undefined: one document.
  Tensor document_starts = {};
  /// Position of the first token, from which document_starts are read.
  int64_t first_position = 0;
  /// [B, K - 1, C] in x's dtype; differentiable: the inputs before the first token, the oldest
  /// first. Undefined: zeros.
  Tensor previous = {};
};

/// y_tc = act(bias_c + sum over i = 0 .. K - 1 of weight_ci x_(t - K + 1 + i)c): each channel on
/// its own, the last tap for the token itself.
///
/// x [B, S, C], floating, may have any strides (rows of a wider matrix, say); a last axis that is
/// not dense is copied first. weight [C, K], floating, K from 1 to 64. y [B, S, C] in x's dtype.
/// Computed in float32 (float64 for float64) and rounded once. Saves x, weight, bias and previous;
/// backward computes the value before the activation again. Gradients of weight and bias are in
/// their dtypes, summed over fixed blocks of tokens: no bits depend on the number of threads.
///
/// TypeError if something is not floating, one of x, weight and bias is float64 and another is not,
/// previous has another dtype than x or document_starts
/// are not int32; ValueError if shapes disagree, there are too many taps, or document_starts are
/// not as they have to be. Source: Gu and Dao 2023, arXiv:2312.00752.
Tensor short_convolution(const Tensor& x,
                         const Tensor& weight,
                         const ShortConvolutionOptions& options = {});

/// The same in ops with a backward each.
Tensor composed_short_convolution(const Tensor& x,
                                  const Tensor& weight,
                                  const ShortConvolutionOptions& options = {});

/// One token of each of M texts: x [M, C], y [M, C] in x's dtype. state [slots, K - 1, C],
/// contiguous, in x's dtype or float32 (float64 for float64), holds in slot slots[m] the last K - 1
/// inputs of text m, the oldest first; x is appended to them in place. bias may be undefined.
///
/// There is no gradient: RuntimeError if grad mode is on and an input wants one. TypeError and
/// ValueError as above, and if the state does not fit, or slots are not M different ones that it
/// has.
Tensor short_convolution_step(const Tensor& x,
                              const Tensor& weight,
                              const Tensor& bias,
                              bool silu,
                              const Tensor& state,
                              std::span<const int64_t> slots);

}  // namespace tapestry

// Short causal convolution of each channel on its own (depthwise), with or without SiLU:
//
//   z_tc = bias_c + sum_i weight_ic x_(t - taps + 1 + i)c;  y = silu(z) or z
//
// The last tap belongs to the token itself. Before the first token stand `previous`, or zeros; a
// window ends where the document of its token begins. As in Mamba (Gu and Dao 2023,
// arXiv:2312.00752).
//
// One floating dtype; float16 and bfloat16 are computed in float32 and rounded once.
#pragma once

#include <cstdint>

#include "autograd/kernels/column_sums.h"
#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

inline constexpr int64_t kMostTaps = 64;

/// Rows [batch, tokens, channels] whose last axis is dense; strides in elements.
struct ConvolutionRows {
  const void* data = nullptr;
  int64_t batch = 0;
  int64_t row = 0;
};

struct ConvolutionProblem {
  DType dtype = kFloat32;  ///< of x, previous, y and their gradients
  int64_t batch = 0;
  int64_t tokens = 0;
  int64_t channels = 0;
  int64_t taps = 0;  ///< 1 .. kMostTaps
  bool silu = false;
  ConvolutionRows x = {};
  const void* previous = nullptr;  ///< [batch, taps - 1, channels]; null: zeros
  const void* weight = nullptr;    ///< [taps, channels] in the compute dtype
  const void* bias = nullptr;      ///< [channels] in the compute dtype; null: zeros
  /// At the position of each token: where its document begins; null: one document. The first token
  /// has position `first_position`. Documents that begin at 0 see what is before the first token.
  const int32_t* starts = nullptr;
  int64_t starts_batch = 0;  ///< from one sample to the next; 0: the same for all
  int64_t first_position = 0;
};

/// y [batch, tokens, channels].
void short_convolution(const ConvolutionProblem& problem, void* y);

struct ConvolutionBackward {
  ConvolutionRows dy = {};
  void* dx = nullptr;         ///< [batch, tokens, channels]; null: not wanted
  void* dprevious = nullptr;  ///< as previous; null: not wanted
  ColumnSums dweight = {};    ///< [channels, taps]
  ColumnSums dbias = {};      ///< [channels]
};
/// Computes z again from x.
void short_convolution_backward(const ConvolutionProblem& problem, const ConvolutionBackward& to);

/// One token of each of problem.batch texts; problem.tokens is 1, previous and starts are not
/// looked at.
struct ConvolutionStep {
  void* state = nullptr;  ///< [slots, taps - 1, channels]: the inputs before it, the oldest first
  DType state_dtype = kFloat32;    ///< that of x or the compute dtype
  const int64_t* slots = nullptr;  ///< [batch], no two alike
  void* y = nullptr;               ///< [batch, channels]
};
void short_convolution_step(const ConvolutionProblem& problem, const ConvolutionStep& to);

}  // namespace tapestry::kernels

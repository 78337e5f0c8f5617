// SwiGLU (Shazeer 2020, arXiv:2002.05202): silu(gate) * up, silu(x) = x / (1 + e^-x).
//
// gate and up are [rows, n] with row strides in elements, so that they can be halves of one matrix.
// One floating dtype; float16 and bfloat16 are computed in float32 and rounded once.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

/// y [rows, n] contiguous = silu(gate) up.
struct SwigluForward {
  DType dtype = kFloat32;
  int64_t rows = 0;
  int64_t n = 0;
  const void* gate = nullptr;
  int64_t gate_stride = 0;
  const void* up = nullptr;
  int64_t up_stride = 0;
  void* y = nullptr;
};
void swiglu(const SwigluForward& call);

/// dy [rows, n] contiguous. With s = sigmoid(gate):
///   dup = dy gate s, dgate = dy up s (1 + gate (1 - s)).
/// dgate and dup may be exactly gate and up.
struct SwigluBackward {
  DType dtype = kFloat32;
  int64_t rows = 0;
  int64_t n = 0;
  const void* gate = nullptr;
  int64_t gate_stride = 0;
  const void* up = nullptr;
  int64_t up_stride = 0;
  const void* dy = nullptr;
  void* dgate = nullptr;
  int64_t dgate_stride = 0;
  void* dup = nullptr;
  int64_t dup_stride = 0;
};
void swiglu_backward(const SwigluBackward& call);

}  // namespace tapestry::kernels

// An activation function of the rows of x plus a bias, in one pass.
//
// x, y, dy and dx are contiguous [rows, n] of one floating dtype, bias is [n] in that dtype or, for
// 16-bit x, float32. Computed in float32 (float64 for float64) and rounded once. f(z) is one of
// those of elementwise.h, with its error.
#pragma once

#include <cstdint>

#include "autograd/kernels/column_sums.h"
#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

enum class Activation { kGelu, kGeluTanh, kSilu };

/// y = f(x + bias). y may be x.
struct BiasActivationForward {
  Activation f = Activation::kGelu;
  DType dtype = kFloat32;
  DType bias_dtype = kFloat32;
  int64_t rows = 0;
  int64_t n = 0;
  const void* x = nullptr;
  const void* bias = nullptr;
  void* y = nullptr;
};
void bias_activation(const BiasActivationForward& call);

/// dx = dy f'(x + bias), and the sums of its columns before it is rounded. dx may be dy or null.
struct BiasActivationBackward {
  Activation f = Activation::kGelu;
  DType dtype = kFloat32;
  DType bias_dtype = kFloat32;
  int64_t rows = 0;
  int64_t n = 0;
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* bias = nullptr;
  void* dx = nullptr;
  ColumnSums dbias;
};
void bias_activation_backward(const BiasActivationBackward& call);

}  // namespace tapestry::kernels

// An activation function of the rows of x plus a bias, in one pass.
//
// x, y, dy and dx are contiguous [rows, n] of one floating dtype, bias is [n] in that dtype or, for
// 16-bit x, float32. Computed in float32 (float64 for float64) and rounded once. f(z) is one of
// those of elementwise.h, with its error.
#pragma once

#include <cstdint>

#include "autograd/kernels/column_sums.h"
#include "autograd/kernels/dtype.h"

namespace tapestry::kernels {

enum class Activation { kGelu, kGeluTanh, kSilu };

/// y = f(x + bias). y may be x.
void bias_activation(Activation f,
                     DType dtype,
                     DType bias_dtype,
                     int64_t rows,
                     int64_t n,
                     const void* x,
                     const void* bias,
                     void* y);

/// dx = dy f'(x + bias), and the sums of its columns before it is rounded. dx may be dy or null.
void bias_activation_backward(Activation f,
                              DType dtype,
                              DType bias_dtype,
                              int64_t rows,
                              int64_t n,
                              const void* dy,
                              const void* x,
                              const void* bias,
                              void* dx,
                              const ColumnSums& dbias);

}  // namespace tapestry::kernels

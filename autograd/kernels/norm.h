// Layer normalisation (Ba et al. 2016) and root-mean-square normalisation (Zhang & Sennrich 2019)
// of the rows of contiguous [rows, n] arrays, with the addition of a residual stream in front of it
// if wanted:
//
//   sum = residual + x + x_bias, normed = (sum - mean(sum)) rstd weight + bias,
//   rstd = 1 / sqrt(avg((sum - mean)^2) + eps),
//
// where mean is 0 unless the norm is centered. Each array has a floating dtype of its own: float64
// all together or not at all. Statistics are summed in float64 and stored as float32 (float64);
// everything else is computed in float32 (float64) and rounded once; what is normalised is the sum
// as it is stored. The gradients of weight and biases are summed over fixed blocks of rows and then
// over the blocks in order, so no result depends on the number of threads. With n == 0 mean and
// rstd are NaN.
#pragma once

#include <cstdint>

#include "autograd/kernels/column_sums.h"
#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

/// What both passes share.
struct NormShape {
  int64_t rows = 0;
  int64_t n = 0;
  bool centered = false;
  DType sum_dtype = kFloat32;     ///< of residual, sum and their gradients
  DType normed_dtype = kFloat32;  ///< of normed and its gradient
  DType weight_dtype = kFloat32;  ///< of weight, bias and their gradients
  DType x_dtype = kFloat32;       ///< of x and its gradient
  DType x_bias_dtype = kFloat32;
};

/// weight null: ones; bias or x_bias null: zeros. With x null (then x_bias is null, too) the sum is
/// the residual itself, and `sum` is not written. normed may be residual or x, sum may be either.
struct NormForward {
  NormShape shape;
  double eps = 0;
  const void* residual = nullptr;
  const void* x = nullptr;
  const void* x_bias = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;
  void* sum = nullptr;
  void* normed = nullptr;
  void* mean = nullptr;  ///< [rows], may be null unless centered
  void* rstd = nullptr;  ///< [rows]
};
void norm_forward(const NormForward& call);

/// With xhat = (sum - mean) rstd and g = dnormed weight:
///   d = dsum + rstd (g - avg(g) - xhat avg(g xhat)), without avg(g) unless centered,
///   dweight = sum over rows of dnormed xhat, dbias = sum over rows of dnormed,
///   dx_bias = sum over rows of d.
/// dsum null: zeros. Each output may be null. d is written in sum_dtype and, if dx is not null,
/// also in x_dtype. Gradients of parameters are written, or added to what is there if `accumulate`;
/// d may be dsum, dnormed or sum. In exact mode rstd (...) and d are rounded to sum_dtype before
/// they are added or summed.
struct NormBackward {
  NormShape shape;
  const void* dsum = nullptr;
  const void* dnormed = nullptr;
  const void* sum = nullptr;
  const void* weight = nullptr;
  const void* mean = nullptr;
  const void* rstd = nullptr;
  void* d = nullptr;
  void* dx = nullptr;
  ColumnSums dweight;
  ColumnSums dbias;
  ColumnSums dx_bias;
};
void norm_backward(const NormBackward& call);

}  // namespace tapestry::kernels

// Layer normalisation (Ba et al. 2016) and root-mean-square normalisation (Zhang & Sennrich 2019)
// of the rows of a contiguous [rows, n] array.
//
// x, y, dy and dx have x_dtype, weight, bias and their gradients w_dtype: both floating, float64
// together or not at all. Statistics are summed in float64 and stored as float32 (float64 where x
// is float64); everything else is computed in float32 (float64). The gradients of weight and bias
// are summed over fixed blocks of rows and then over the blocks in order, so no result depends on
// the number of threads. y may be x, dx may be dy. With n == 0 mean and rstd are NaN.
#pragma once

#include <cstdint>

#include "autograd/kernels/dtype.h"

namespace tapestry::kernels {

/// y = (x - mean) rstd weight + bias, rstd = 1 / sqrt(var + eps), var biased and taken in a second
/// pass around the mean. weight null: ones; bias null: zeros. mean and rstd: [rows].
void layer_norm(DType x_dtype,
                DType w_dtype,
                int64_t rows,
                int64_t n,
                double eps,
                const void* x,
                const void* weight,
                const void* bias,
                void* y,
                void* mean,
                void* rstd);

/// With xhat = (x - mean) rstd and g = dy weight:
///   dx = rstd (g - avg(g) - xhat avg(g xhat)), dweight = sum over rows of dy xhat,
///   dbias = sum over rows of dy.
/// Each output may be null; dweight and dbias are written, not accumulated.
void layer_norm_backward(DType x_dtype,
                         DType w_dtype,
                         int64_t rows,
                         int64_t n,
                         const void* dy,
                         const void* x,
                         const void* weight,
                         const void* mean,
                         const void* rstd,
                         void* dx,
                         void* dweight,
                         void* dbias);

/// y = x rstd weight, rstd = 1 / sqrt(avg(x^2) + eps). weight null: ones. rstd: [rows].
void rms_norm(DType x_dtype,
              DType w_dtype,
              int64_t rows,
              int64_t n,
              double eps,
              const void* x,
              const void* weight,
              void* y,
              void* rstd);

/// With xhat = x rstd and g = dy weight: dx = rstd (g - xhat avg(g xhat)),
/// dweight = sum over rows of dy xhat. Each output may be null; written, not accumulated.
void rms_norm_backward(DType x_dtype,
                       DType w_dtype,
                       int64_t rows,
                       int64_t n,
                       const void* dy,
                       const void* x,
                       const void* weight,
                       const void* rstd,
                       void* dx,
                       void* dweight);

}  // namespace tapestry::kernels

// Softmax, its logarithm and its normaliser along one axis.
//
// The input is contiguous and viewed as [outer, n, inner]; the axis of n elements is normalised.
// dtype is floating; float16 and bfloat16 are computed in float32 and rounded once. Results do not
// depend on the number of threads. A NaN makes its row NaN. Outputs may be exactly an input.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

/// y_i = e^(x_i - m) / sum_k e^(x_k - m), m = max x. A row of nothing but -inf, or with +inf, gives
/// NaN (as PyTorch does).
void softmax(DType dtype, int64_t outer, int64_t n, int64_t inner, const void* x, void* y);

/// y_i = x_i - m - log sum_k e^(x_k - m).
void log_softmax(DType dtype, int64_t outer, int64_t n, int64_t inner, const void* x, void* y);

/// dx_i = y_i (dy_i - sum_k y_k dy_k), y = softmax(x).
void softmax_backward(
    DType dtype, int64_t outer, int64_t n, int64_t inner, const void* y, const void* dy, void* dx);

/// dx_i = dy_i - e^(y_i) sum_k dy_k, y = log_softmax(x).
void log_softmax_backward(
    DType dtype, int64_t outer, int64_t n, int64_t inner, const void* y, const void* dy, void* dx);

/// y[outer, inner] = log sum_k e^(x_k). A row of nothing but -inf (or an empty one) gives -inf, one
/// with +inf gives +inf.
void logsumexp(DType dtype, int64_t outer, int64_t n, int64_t inner, const void* x, void* y);

// For softmax.cpp: units [begin, end), which are rows if inner is 1, else blocks of columns.
TAPESTRY_DECLARE_PER_ISA(void softmax_units(DType dtype,
                                            bool logarithm,
                                            int64_t begin,
                                            int64_t end,
                                            int64_t n,
                                            int64_t inner,
                                            const void* x,
                                            void* y))
TAPESTRY_DECLARE_PER_ISA(void softmax_backward_units(DType dtype,
                                                     bool logarithm,
                                                     int64_t begin,
                                                     int64_t end,
                                                     int64_t n,
                                                     int64_t inner,
                                                     const void* y,
                                                     const void* dy,
                                                     void* dx))
TAPESTRY_DECLARE_PER_ISA(void logsumexp_units(
    DType dtype, int64_t begin, int64_t end, int64_t n, int64_t inner, const void* x, void* y))

}  // namespace tapestry::kernels

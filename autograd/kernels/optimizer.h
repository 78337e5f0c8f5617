// One fused pass of an optimizer over a parameter.
//
// Parameter and states are float32 or float64 (param_dtype), the gradient any floating dtype; the
// gradient is multiplied by grad_scale (clipping, 1 / loss scale) as it is read. Numbers are
// computed in param_dtype, constants that depend on the step in float64. Arrays are contiguous and
// do not overlap. Results do not depend on the number of threads.
#pragma once

#include <cstdint>

#include "autograd/kernels/dtype.h"

namespace tapestry::kernels {

/// Adam (Kingma & Ba 2015, algorithm 1) and AdamW (Loshchilov & Hutter 2019); step counts from 1:
///   decoupled: p -= lr wd p;  else: g += wd p
///   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
///   p -= lr (m / (1 - b1^step)) / (sqrt(v / (1 - b2^step)) + eps)
void adamw(DType param_dtype,
           DType grad_dtype,
           int64_t n,
           void* p,
           const void* g,
           void* exp_avg,
           void* exp_avg_sq,
           double lr,
           double beta1,
           double beta2,
           double eps,
           double weight_decay,
           bool decoupled,
           int64_t step,
           double grad_scale);

/// g += wd p;  buf = g at the first step, else momentum buf + (1 - dampening) g;
/// p -= lr (g + momentum buf) with nesterov, else p -= lr buf. momentum_buffer null (momentum 0):
/// p -= lr g.
void sgd(DType param_dtype,
         DType grad_dtype,
         int64_t n,
         void* p,
         const void* g,
         void* momentum_buffer,
         double lr,
         double momentum,
         double dampening,
         double weight_decay,
         bool nesterov,
         bool first_step,
         double grad_scale);

}  // namespace tapestry::kernels

// Normalization over the last axis.
//
// x [..., H] of any strides; weight and bias are [H] and may be left out (an undefined Tensor).
// They have x's dtype or float32, as when bfloat16 activations meet float32 parameters (TypeError
// otherwise). Sums are in float32 (float64 for float64); the result is contiguous and has x's
// dtype, the gradients of weight and bias have theirs. ValueError if x has no axis or a weight
// another shape than [H], or if eps is negative.
#pragma once

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, with the variance over H (not H - 1) taken
/// around the mean. Saves x, weight and two numbers per row. Source: Ba et al. 2016,
/// arXiv:1607.06450.
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps = 1e-5);
/// x / sqrt(mean(x^2) + eps) * weight. Saves x, weight and one number per row. Source: Zhang and
/// Sennrich 2019, arXiv:1910.07467.
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps = 1e-5);

/// The same functions in elementary ops.
Tensor composed_layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps);
Tensor composed_rms_norm(const Tensor& x, const Tensor& weight, double eps);

}  // namespace tapestry

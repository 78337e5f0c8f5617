// Activation functions.
//
// All take floating tensors of any strides (TypeError otherwise; relu and squared_relu also take
// integers) and return a contiguous tensor of the same shape and dtype. 16-bit inputs are computed
// in float32 and rounded once. Derivatives of any order are available.
#pragma once

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// max(x, 0). The derivative at 0 is 0. Saves the output.
Tensor relu(const Tensor& x);
/// max(x, 0)^2. Source: So et al. 2021, arXiv:2109.08668.
Tensor squared_relu(const Tensor& x);
/// x Phi(x) = x (1 + erf(x / sqrt(2))) / 2. Saves x. Source: Hendrycks and Gimpel 2016,
/// arXiv:1606.08415.
Tensor gelu(const Tensor& x);
/// The approximation x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 from the same paper, which
/// configurations also call fast_gelu. Saves x.
Tensor gelu_tanh(const Tensor& x);
/// x sigmoid(x). Saves x.
Tensor silu(const Tensor& x);
/// log(1 + exp(x)), without overflow for large x and with full relative accuracy for small. Saves
/// x.
Tensor softplus(const Tensor& x);

/// gelu(x + bias) and its like: x [..., H], bias [H] in x's dtype or, for 16-bit x, float32
/// (ValueError, TypeError). One pass forward; one pass backward gives both gradients, that of bias
/// added straight into its main_grad if it has one. The sum x + bias is not rounded. Saves x and
/// bias.
Tensor bias_gelu(const Tensor& x, const Tensor& bias);
Tensor bias_gelu_tanh(const Tensor& x, const Tensor& bias);
Tensor bias_silu(const Tensor& x, const Tensor& bias);

/// silu(gate) * up. Both have one shape and one dtype (ValueError, TypeError); one pass forward and
/// one backward. Saves gate and up only. Source: Shazeer 2020, arXiv:2002.05202.
Tensor swiglu(const Tensor& gate, const Tensor& up);
/// The same for x [..., 2F], whose last axis holds gate and then up; the result is [..., F], and
/// the gradient is written as one tensor. ValueError if the last axis is odd or missing. Saves x
/// only.
Tensor swiglu(const Tensor& x);

/// cap tanh(scale x / cap), or scale x for a cap of 0: a bound that leaves small values as they
/// are. Computed in elementary ops. ValueError for a negative cap. Source: Gemma 2,
/// arXiv:2408.00118, section 2.
Tensor soft_cap(const Tensor& x, double scale, double cap);

/// The same functions in elementary ops.
Tensor composed_gelu(const Tensor& x);
Tensor composed_gelu_tanh(const Tensor& x);
Tensor composed_silu(const Tensor& x);
Tensor composed_bias_gelu(const Tensor& x, const Tensor& bias);
Tensor composed_bias_gelu_tanh(const Tensor& x, const Tensor& bias);
Tensor composed_bias_silu(const Tensor& x, const Tensor& bias);
Tensor composed_swiglu(const Tensor& gate, const Tensor& up);
Tensor composed_swiglu(const Tensor& x);

}  // namespace tapestry

// Normalization over the last axis.
//
// x [..., H] of any strides; weight and bias are [H] and may be left out (an undefined Tensor).
// They have the result's dtype or float32, as when bfloat16 activations meet float32 parameters
// (TypeError otherwise). The result is contiguous and has x's dtype or the given one (floating;
// float64 for float64 x and for no other, TypeError). Sums are in float32 (float64 for float64).
// The gradients of weight and bias have their dtype; where a parameter has a main_grad they are
// added straight into it. ValueError if x has no axis or a weight another shape than [H], or if eps
// is negative.
#pragma once

#include <optional>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, with the variance over H (not H - 1) taken
/// around the mean. Saves x, weight and two numbers per row. Source: Ba et al. 2016,
/// arXiv:1607.06450.
Tensor layer_norm(const Tensor& x,
                  const Tensor& weight,
                  const Tensor& bias,
                  double eps = 1e-5,
                  std::optional<DType> dtype = std::nullopt);
/// x / sqrt(mean(x^2) + eps) * weight. Saves x, weight and one number per row. Source: Zhang and
/// Sennrich 2019, arXiv:1910.07467.
Tensor rms_norm(const Tensor& x,
                const Tensor& weight,
                double eps = 1e-5,
                std::optional<DType> dtype = std::nullopt);

struct AddNormOptions {
  double eps = 1e-5;
  /// [H], added to x: the bias of the linear layer that made it. x's dtype or float32.
  Tensor x_bias = {};
  /// Of normed; x's if not given.
  std::optional<DType> dtype = std::nullopt;
};
struct AddNorm {
  Tensor sum;     ///< residual + x (+ x_bias), in residual's dtype
  Tensor normed;  ///< the norm of sum
};
/// The sum with the residual stream and its norm, in one pass forward and one backward. x and
/// residual have one shape (ValueError) and floating dtypes of their own, float64 together or not
/// at all (TypeError). Where they have the same dtype, one tensor is the gradient of both. Saves
/// sum, weight and one or two numbers per row, not x.
AddNorm add_layer_norm(const Tensor& x,
                       const Tensor& residual,
                       const Tensor& weight,
                       const Tensor& bias,
                       const AddNormOptions& options = {});
AddNorm add_rms_norm(const Tensor& x,
                     const Tensor& residual,
                     const Tensor& weight,
                     const AddNormOptions& options = {});

/// The same functions in elementary ops.
Tensor composed_layer_norm(const Tensor& x,
                           const Tensor& weight,
                           const Tensor& bias,
                           double eps,
                           std::optional<DType> dtype = std::nullopt);
Tensor composed_rms_norm(const Tensor& x,
                         const Tensor& weight,
                         double eps,
                         std::optional<DType> dtype = std::nullopt);
AddNorm composed_add_layer_norm(const Tensor& x,
                                const Tensor& residual,
                                const Tensor& weight,
                                const Tensor& bias,
                                const AddNormOptions& options = {});
AddNorm composed_add_rms_norm(const Tensor& x,
                              const Tensor& residual,
                              const Tensor& weight,
                              const AddNormOptions& options = {});

}  // namespace tapestry

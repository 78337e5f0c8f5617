// Gradient norms and clipping.
#pragma once

#include "autograd/tensor/tensor.h"

namespace tapestry::optim {

/// Euclidean norm over all the tensors together, squares summed in double precision. Undefined
/// entries count as nothing. NaN if one is in the set, else infinity if one is.
double global_norm(const TensorList& tensors);

/// clip_value / (norm + 1e-6) for a norm above clip_value. 1 for any other, so that a step within
/// the limit is not touched, and for one that is not finite, whose step is not applied anyway.
/// ValueError unless clip_value > 0.
double clip_coefficient(double norm, double clip_value);

/// Multiplies all gradients by clip_coefficient in place, and touches nothing when that is 1.
/// Returns the norm before. RuntimeError, before anything is changed, for a gradient whose elements
/// share memory (expand()) and for two dense ones that do. This is "ClipGlobalNorm".
double clip_grad_norm(const TensorList& gradients, double clip_value);

/// Limits each element to [-clip_value, clip_value] in place; infinities become the limit, NaN
/// stays NaN. ValueError unless clip_value > 0, RuntimeError as in clip_grad_norm. This is
/// "GradClipByValue".
void clip_grad_value(const TensorList& gradients, double clip_value);

}  // namespace tapestry::optim

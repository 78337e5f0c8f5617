// The two products of linear()'s backward, for ops that do something between them.
#pragma once

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// dx = dy weight: dy [.., out], weight [out, in]. `rounded` is the weight in dy's dtype, or
/// undefined; a recorded pass uses the weight itself.
Tensor linear_input_gradient(const Tensor& dy, const Tensor& weight, const Tensor& rounded);

/// dweight = dy^T x summed over all leading axes, in the dtype of `leaf`, the weight. If that has a
/// main_grad it is added there, and the result is that very tensor (see main_grad_target()).
Tensor linear_weight_gradient(const Tensor& dy, const Tensor& x, const Tensor& leaf);

}  // namespace tapestry

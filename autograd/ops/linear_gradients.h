// The products of linear()'s backward, for ops that do something between them.
#pragma once

#include <span>

#include "autograd/ops/exact_runs.h"
#include "autograd/tensor/tensor.h"

namespace tapestry {

/// dx = dy weight: dy [.., out], weight [out, in]. `rounded` is the weight in dy's dtype, or
/// undefined; a recorded pass uses the weight itself. In exact mode the sums are cut as `outputs`
/// says, if it is not empty; a recorded pass cannot do so (RuntimeError).
Tensor linear_input_gradient(const Tensor& dy,
                             const Tensor& weight,
                             const Tensor& rounded,
                             std::span<const kernels::SumRun> outputs = {});

/// A rank's part of it in exact mode: float32, to be summed over the ranks that have the other
/// output features, and rounded then. RuntimeError in a recorded pass.
Tensor linear_input_gradient_part(const Tensor& dy,
                                  const Tensor& weight,
                                  const Tensor& rounded,
                                  std::span<const kernels::SumRun> outputs);

/// dweight = dy^T x summed over all leading axes, in the dtype of `leaf`, the weight. If that has a
/// main_grad it is added there, and the result is that very tensor (see main_grad_target()). Exact
/// sums take the leaves of token_runs(rows, tokens_apart).
Tensor linear_weight_gradient(const Tensor& dy,
                              const Tensor& x,
                              const Tensor& leaf,
                              bool tokens_apart = false);

/// dbias = dy summed over all leading axes, in `dtype`, that of the bias; `leaf` is the bias, or
/// undefined. If it has exact sums each element of dy is a term of these, and they are the result.
Tensor linear_bias_gradient(const Tensor& dy, const Tensor& leaf, DType dtype);

}  // namespace tapestry

// A linear layer with one weight for each group of rows: the experts of a mixture.
#pragma once

#include <vector>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// y[r] = weight[e] x[r] + bias[e] for the rows r of group e, ends[e - 1] <= r < ends[e] (from 0
/// for the first): x [R, in], weight [E, out, in], bias [E, out] or undefined, y [R, out].
/// Floating dtypes, any strides. Groups may be empty, R may be 0.
///
/// Saves x and weight, each where the other wants a gradient. For each group: dx = dy weight[e],
/// dweight[e] = dy^T x and dbias[e] = sum dy, which are zero, not undefined, for a group without
/// rows. If weight has a main_grad its gradient is added there (see main_grad_target()).
///
/// Mixed precision and `rounded_weight` are as in linear(): x may be bfloat16 or float16 where
/// weight and bias, or one of them, are float32.
///
/// A pass touches the memory of weight and bias whatever rows there are, also none: where that is a
/// window which all ranks open together (Storage), none of them is missing.
///
/// ValueError unless `ends` has E entries that ascend from 0 or more to R and the shapes fit;
/// TypeError for other dtypes.
Tensor grouped_linear(const Tensor& x,
                      const Tensor& weight,
                      const std::vector<int64_t>& ends,
                      const Tensor& bias = {},
                      const Tensor& rounded_weight = {});

}  // namespace tapestry

// The product of a linear layer whose input features are divided over ranks, in exact mode.
#pragma once

#include <functional>

#include "autograd/ops/exact_runs.h"
#include "autograd/tensor/tensor.h"
#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"

namespace tapestry {

/// The rank's leaves of a sum over an axis that the layout's ranks divide, of which it has `own`;
/// of `pieces` logical tensors that lie one below the other, leaf i is that of each of them.
/// ValueError if ranks do not divide the leaves.
std::vector<kernels::SumRun> divided_runs(int64_t own,
                                          const TensorParallelLayout& layout,
                                          int64_t pieces = 1);

/// y = x weight^T + bias, summed over the ranks: x [.., in] and weight [out, in] are the rank's
/// features, bias [out] (may be undefined) is the same on all. Each rank sums the leaves `inputs`
/// of it in float32; these sums are added over the group as a tree, then the bias, and the result
/// is rounded to the dtype of x once. It is replicated, or a piece of the sequence. Dtypes,
/// `rounded` and `recompute_x` as in linear(). In a group of one that is linear().
Tensor exact_row_linear(const Tensor& x,
                        const Tensor& weight,
                        const Tensor& bias,
                        const Tensor& rounded,
                        const TensorParallelLayout& layout,
                        const LinearSums& sums,
                        std::function<Tensor()> recompute_x = nullptr);

}  // namespace tapestry

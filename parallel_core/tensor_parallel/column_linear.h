// The product of a linear layer whose output features are divided over ranks.
#pragma once

#include "autograd/ops/exact_runs.h"
#include "autograd/tensor/tensor.h"
#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"

namespace tapestry {

/// y = x weight^T + bias, where weight [out, in] and bias [out] (may be undefined) are this rank's
/// rows. Dtypes and `rounded` as in linear(). With sequence parallelism x is this rank's piece of
/// the sequence, which is gathered first; else it is replicated. y [.., out] has the whole sequence
/// in either case.
///
/// Backward sums the gradient of x over the ranks (and scatters it along the sequence), which goes
/// on while that of the weight is computed. Only the own piece of x is kept and gathered again in
/// backward, beside the other product; with `keeps_gathered` all of x is kept instead. Source:
/// Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.
///
/// In exact mode each rank sums the leaves `sums.outputs` of the gradient of x in float32, these
/// sums are added over the ranks as a tree, and the result is rounded to x's dtype once.
Tensor column_parallel_linear(const Tensor& x,
                              const Tensor& weight,
                              const Tensor& bias,
                              const Tensor& rounded,
                              const TensorParallelLayout& layout,
                              bool keeps_gathered = false,
                              const LinearSums& sums = {});

}  // namespace tapestry

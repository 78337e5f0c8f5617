// The linear layers of experts in exact mode (autograd/kernels/machine/exact.h).
#pragma once

#include <cstdint>
#include <vector>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// Rows sorted by expert.
struct ExpertRows {
  std::vector<int64_t> ends;  ///< where those of each expert end, ascending
  /// Where the leaves of rows end, ascending; each leaf's rows are of one expert. A leaf has all
  /// rows of that expert from a set of tokens which no layout divides, in their order; its share of
  /// a weight's gradient is one term. Empty: each row is a leaf.
  std::vector<int64_t> leaf_ends = {};
};

/// How the sums of a product run that ranks with other slices of the experts may divide.
struct ExpertSums {
  DType compute = kFloat32;  ///< of both factors; what has another dtype is rounded to it
  int64_t in_leaves = 1;     ///< of the sum over `in` of y that are here; 1: one chain
  int64_t out_leaves = 1;    ///< of the sum over `out` of dx
  int64_t out_pieces = 1;    ///< tensors that lie one below the other in weight, divided alike
  bool parts = false;        ///< y is float32: a part of the sum, to be rounded after it
};

/// y[r] = weight[e] x[r] for the rows r of expert e: x [R, in], weight [E, out, in] of a floating
/// dtype but float64, y [R, out] in the compute dtype, or float32 for parts. dx has the dtype of x,
/// so it is a part in float32 where x is. `rounded` is the weight in the compute dtype, or
/// undefined.
///
/// Each element of y and dx is a tree of leaves (kernels/gemm/gemm_exact.h), whatever rows there
/// are besides. The weight's gradient goes into its main_grad as exact sums, if it has such a one.
///
/// Touches the memory of weight whatever rows there are. ValueError where shapes or ends do not
/// fit; RuntimeError for a backward pass that is recorded.
Tensor expert_product(const Tensor& x,
                      const Tensor& weight,
                      const ExpertRows& rows,
                      const ExpertSums& sums,
                      const Tensor& rounded = {});

/// y[r] = x[r] + bias[expert_of_row[r]], rounded to x's dtype: x [R, n], bias [E, n]. The bias's
/// gradient is as above, each row a term. ValueError where sizes do not fit.
Tensor add_expert_bias(const Tensor& x,
                       const Tensor& bias,
                       const std::vector<int64_t>& expert_of_row);

}  // namespace tapestry

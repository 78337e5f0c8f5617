// How products cut their sums in exact mode (kernels/machine/exact.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/kernels/gemm/gemm_exact.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/tensor/tensor.h"

namespace tapestry {

/// The leaves of a sum over k: leaf i is [i k / leaves, (i + 1) k / leaves). A rank that has 1/n of
/// an axis, which n divides, has leaves / n of its leaves: tree_runs(k / n, leaves / n).
std::vector<kernels::SumRun> tree_runs(int64_t k, int64_t leaves = kSumLeaves);

/// The same where several logical tensors lie one below the other, `pieces` of equal size: leaf i
/// is leaf i of each of them. One chain if it is one leaf. ValueError if k is not divisible.
std::vector<kernels::SumRun> tree_runs_of_pieces(int64_t k, int64_t pieces, int64_t leaves);

/// How a linear layer cuts its sums in exact mode, where some layout divides what they go over.
/// Outside, and for float64, none of it counts.
struct LinearSums {
  std::vector<kernels::SumRun> inputs;   ///< of y, over the input features; empty: one chain
  std::vector<kernels::SumRun> outputs;  ///< of dx, over the output features; empty: one chain
  bool tokens_apart = false;             ///< of dweight: `apart` in token_runs()
};

/// Whether an op on values of that dtype goes by such runs now: in exact mode, if there are any.
bool sums_by_runs(std::span<const kernels::SumRun> runs, DType dtype);

/// y = the sums over k of a[.., k] b[k, n], cut as tree_gemm() does, + beta y, where y [.., n] is
/// contiguous, of the operands' dtype or float32. ValueError if the runs do not end with k.
void tree_product(const Tensor& a,
                  const Tensor& b,
                  std::span<const kernels::SumRun> runs,
                  const Tensor& y,
                  double beta = 0);

/// The rows of a product's operands as leaves of tokens. Of `strides` interleaved sets, set i has
/// the rows i, i + strides, i + 2 strides ...; each has these runs.
struct TokenRuns {
  int64_t strides = 1;
  std::vector<kernels::SumRun> runs;
};

/// The leaves that exact_tokens() says, if it speaks of so many rows; else, or with `apart`, every
/// row is one. `apart` is for parameters that some layouts use on a piece of the sequence.
TokenRuns token_runs(int64_t rows, bool apart = false);

/// sums[m, n] += alpha A^T B in units of kernels/exact_sums.h, the leaves as above: of the shape,
/// A is stored [k, m] and B [k, n] with k rows of tokens; lda, ldb and ldc count, flags do not.
void exact_token_gemm(
    kernels::GemmShape shape, const void* a, const void* b, double* sums, bool apart = false);

/// The same for matrices: sums [m, n] float64 contiguous, dy [rows, m], x [rows, n] of one 16- or
/// 32-bit floating dtype; any strides (copied if their rows are not contiguous).
void add_exact_products(const Tensor& dy, const Tensor& x, const Tensor& sums, bool apart = false);

}  // namespace tapestry

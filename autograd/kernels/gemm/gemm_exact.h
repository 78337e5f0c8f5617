// Products of exact mode (machine/exact.h) whose sum is more than one run over k: cut into leaves,
// of which each is summed in order, one fused multiply-add after the other (in pairs of bfloat16
// where gemm_tiled.h takes these; a run of odd length ends in a pair with a zero).
//
// An element's bits depend on its own row of A and column of B and on the leaves alone: not on m,
// n, threads or tiles. gemm() itself, in exact mode, is the product of one leaf.
#pragma once

#include <cstdint>
#include <span>

#include "autograd/kernels/gemm/gemm_shape.h"

namespace tapestry::kernels {

/// A run of k, which continues the sum of the run before unless that has ended its leaf: `begin`,
/// begin + step and so on, below `end`. Steps other than 1 are for products whose k is the stored
/// row of both factors (trans_a, and not trans_b).
struct SumRun {
  int64_t begin = 0;
  int64_t end = 0;
  bool ends_leaf = true;
  int64_t step = 1;
};

/// C = tree(leaves) alpha + beta C. The sums of the leaves, whose number is a power of two and at
/// most 2^16, are added in float32 as a balanced binary tree of neighbours: ((l0 + l1) + (l2 + l3))
/// + ...; then scaled, added to beta C, and rounded once to the dtype of C. The batch of the shape
/// is not looked at. float32, bfloat16 and float16. A leaf may be empty (zeros).
void tree_gemm(
    const GemmShape& shape, std::span<const SumRun> runs, const void* a, const void* b, void* c);

/// sums[i, j] += the sum of each leaf, any number of them, times alpha, rounded to the unit of
/// exact_sums.h: sums float64 [m, n] with rows shape.ldc apart. Of the shape, c_dtype and beta are
/// not looked at.
void exact_sum_gemm(const GemmShape& shape,
                    std::span<const SumRun> runs,
                    const void* a,
                    const void* b,
                    double* sums);

}  // namespace tapestry::kernels

// Gradients of parameters that are shared by all rows of a matrix: sums over the rows, taken in
// blocks whose number depends on the matrix only, and then over the blocks in order. No result
// depends on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

/// Where the sums of n columns go.
struct ColumnSums {
  void* out = nullptr;  ///< [n]; null: not wanted
  DType dtype = kFloat32;
  bool accumulate = false;  ///< add to what is there, rather than write over it
  /// `out` is float64 in units of exact_sums.h: each row's term is rounded to one and added.
  bool exact = false;
};

/// Blocks that `rows` are cut into; block b holds rows [rows * b / blocks, rows * (b + 1) /
/// blocks).
inline int64_t row_blocks(int64_t rows) {
  constexpr int64_t kMaxBlocks = 64;
  constexpr int64_t kMinRows = 16;
  return std::clamp<int64_t>(rows / kMinRows, 1, kMaxBlocks);
}

/// The sums over partial [blocks, n], whose dtype is float32 or float64.
void combine_blocks(
    DType partial_dtype, int64_t blocks, int64_t n, const void* partial, const ColumnSums& sums);

}  // namespace tapestry::kernels

// Gradients of parameters that are shared by all rows of a matrix: sums over the rows, taken in
// blocks whose number depends on the matrix only, and then over the blocks in order. No result
// depends on the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>

#include "autograd/kernels/machine/dtype.h"
#include "autograd/kernels/machine/scratch.h"

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

/// The sums over partial [blocks, n], whose dtype is float32 or float64. Not for exact sums.
void combine_blocks(
    DType partial_dtype, int64_t blocks, int64_t n, const void* partial, const ColumnSums& sums);

/// Exact sums of n columns, for a kernel that adds the terms of a row to an array: the threads of
/// its loop have an ExactColumnsPart each, whose rows may be any. Sums that are not `exact` are
/// made so too, and rounded by finish().
class ExactColumns {
 public:
  /// `wanted`: that of which the kernel has to make terms, also where sums.out is null.
  ExactColumns(const ColumnSums& sums, int64_t n, bool wanted);
  /// After the loop.
  void finish();

 private:
  friend class ExactColumnsPart;
  ColumnSums sums_;
  int64_t n_;
  bool wanted_;
  Scratch memory_;
  double* total_ = nullptr;
  std::mutex mutex_;
};

/// The rows of one thread; its sums are added to the whole when it is destroyed.
class ExactColumnsPart {
 public:
  explicit ExactColumnsPart(ExactColumns& whole);
  ExactColumnsPart(const ExactColumnsPart&) = delete;
  ExactColumnsPart& operator=(const ExactColumnsPart&) = delete;
  ~ExactColumnsPart();

  /// n zeros, to which the kernel adds the terms of the next row; null where they are not wanted.
  float* next_row();
  /// Rounds them to units and adds them.
  void add_row();

 private:
  ExactColumns& whole_;
  Scratch memory_;
  double* sums_ = nullptr;
  float* terms_ = nullptr;
};

}  // namespace tapestry::kernels

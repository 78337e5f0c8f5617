// The passes of optimizers that keep statistics of a matrix's rows and columns in place of one
// number for each element: Adafactor (Shazeer & Stern 2018, arXiv:1804.04235, algorithms 4 and 5)
// and CAME (Luo et al. 2023, arXiv:2307.02047, algorithm 2).
//
// With gradient g (scaled and limited as it is read), a matrix's root is row_root[i] *
// column_root[j], which stands for 1 / sqrt(V), and that of a vector 1 / sqrt(exp_avg_sq); u = g
// times the root, clipped u = clip u. A pass runs over tiles of all parameters at once, as one
// parallel loop. Sums of a tile are its own, so results do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <span>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

/// What the tiles of one tensor have in common. All computing is in the dtype of the values.
struct FactoredConstants {
  double grad_scale = 1;
  double grad_limit = 0;  ///< infinity: none
  double eps1 = 0;        ///< added to squares of gradients
  double eps3 = 0;        ///< CAME: added to squares of residuals
  double beta1 = 0;
  double beta2 = 0;  ///< of a vector's exp_avg_sq
  double clip = 1;   ///< 1 / max(1, RMS(u) / clip_threshold)
  double step = 0;   ///< learning rate, times the parameter's scale
  double decay = 0;  ///< step times weight decay
};

/// A block of rows of a matrix that lie together, or of a vector as one row. Pointers are to its
/// first element, row or column; arrays are of `dtype` unless said otherwise.
struct FactoredTile {
  int64_t rows = 0;
  int64_t columns = 0;
  DType dtype = kFloat32;  ///< float32 or float64
  DType grad_dtype = kFloat32;
  const void* g = nullptr;
  void* p = nullptr;
  void* exp_avg = nullptr;     ///< null: none
  void* exp_avg_sq = nullptr;  ///< of a vector; null for a matrix
  DType copy_dtype = kBFloat16;
  void* copy = nullptr;  ///< gets the new values of float32 parameters, 16 bits; null: none
  const void* row_root = nullptr;
  const void* column_root = nullptr;
  double* row_sums = nullptr;       ///< [rows], written
  void* column_sums = nullptr;      ///< [columns], added to
  double* squares = nullptr;        ///< sum of u^2, written
  double* param_squares = nullptr;  ///< sum of p^2, written; null: not wanted
  const FactoredConstants* constants = nullptr;
};

/// Row and column sums of g^2 + eps1. Matrices only.
void factored_squares(std::span<const FactoredTile> tiles);
/// Sums of u^2 and p^2. Of a vector first exp_avg_sq = beta2 exp_avg_sq + (1 - beta2)(g^2 + eps1).
void factored_norms(std::span<const FactoredTile> tiles);
/// d = step clip u; with exp_avg d = exp_avg = beta1 exp_avg + (1 - beta1) d;  p -= decay p + d.
void adafactor_apply(std::span<const FactoredTile> tiles);
/// m' = beta1 m + (1 - beta1) clip u, m being exp_avg. Of a matrix the row and column sums of (clip
/// u - m')^2 + eps3; of a vector p -= decay p + step m'.
void came_average(std::span<const FactoredTile> tiles);
/// p -= decay p + step m root, with the root of the residuals. Matrices only.
void came_apply(std::span<const FactoredTile> tiles);

}  // namespace tapestry::kernels

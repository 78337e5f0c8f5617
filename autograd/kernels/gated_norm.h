// Root-mean-square normalisation of groups of a row, with a gate silu(z) before or behind it, as
// the recurrent layers end: gated delta nets norm first (Yang et al. 2024, arXiv:2412.06464),
// Mamba-2 gates first (Dao and Gu 2024, arXiv:2405.21060).
//
//   gate first:  u = x silu(z), y = u rstd gain
//   norm first:  u = x,         y = u rstd gain silu(z)
//
// with rstd = 1 / sqrt(m + eps) of each group, m the mean of its u^2 or a number that is given: of
// a group that several ranks share, a rank knows its part only.
//
// x, z, y and gain have floating dtypes of their own, float64 all together or not at all. Squares
// are summed in float64, everything else is computed in float32 (float64) and rounded once. No
// result depends on the number of threads.
#pragma once

#include <cstdint>

#include "autograd/kernels/column_sums.h"
#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

/// What all passes share.
struct GatedNormShape {
  int64_t rows = 0;
  int64_t n = 0;      ///< of a row
  int64_t group = 0;  ///< divides n
  bool gate_first = false;
  /// The gain has n elements, or as many as a group and is shared by all of them.
  bool gain_is_shared = false;
  DType x_dtype = kFloat32;
  DType z_dtype = kFloat32;
  DType y_dtype = kFloat32;
  DType gain_dtype = kFloat32;
  int64_t x_stride = 0;  ///< elements from one row to the next
  int64_t z_stride = 0;
};

/// gain null: ones. y [rows, n], dense, is none of the inputs.
struct GatedNormForward {
  GatedNormShape shape;
  double eps = 0;
  const void* x = nullptr;
  const void* z = nullptr;
  const void* gain = nullptr;
  const void* mean_squares = nullptr;  ///< [rows, n / group], compute type; null: of the row itself
  void* rstd = nullptr;                ///< [rows, n / group], compute type
  void* y = nullptr;
};
void gated_norm(const GatedNormForward& call);

/// With h the gradient of u rstd:
///   du = rstd (h - u rstd avg(h u rstd)), or rstd h where mean squares were given, whose gradient
///   is then written: -1/2 rstd^2 sum(h u rstd).
/// Each output may be null; dx and dz [rows, n] are dense, in the dtypes of x and z.
struct GatedNormBackward {
  GatedNormShape shape;
  const void* dy = nullptr;
  int64_t dy_stride = 0;
  const void* x = nullptr;
  const void* z = nullptr;
  const void* gain = nullptr;
  const void* rstd = nullptr;
  bool squares_were_given = false;
  void* dx = nullptr;
  void* dz = nullptr;
  void* dmean_squares = nullptr;
  ColumnSums dgain;
};
void gated_norm_backward(const GatedNormBackward& call);

/// squares [rows, n / group] (compute type) = the sum of u^2 over each group; of the shape, what
/// concerns y and gain is not read. Backward: du = 2 u dsquares; dx or dz may be null.
struct GatedSquares {
  GatedNormShape shape;
  const void* x = nullptr;
  const void* z = nullptr;
  void* squares = nullptr;
};
void gated_squares(const GatedSquares& call);
struct GatedSquaresBackward {
  GatedNormShape shape;
  const void* x = nullptr;
  const void* z = nullptr;
  const void* dsquares = nullptr;
  void* dx = nullptr;
  void* dz = nullptr;
};
void gated_squares_backward(const GatedSquaresBackward& call);

}  // namespace tapestry::kernels

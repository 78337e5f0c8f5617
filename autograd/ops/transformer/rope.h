// Rotary position embedding.
#pragma once

#include <span>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// Cosines and sines of the angles position * f_j, each [S, d/2] for d rotated channels. Building
/// one costs S d sines: keep it as long as S, d and the frequencies stay the same.
struct RopeTable {
  Tensor cos;
  Tensor sin;
};

struct RopeTableOptions {
  /// f_j = base^(-2j/d), j = 0 .. d/2-1.
  double base = 10000;
  /// Positions are divided by it (position interpolation, Chen et al. 2023, arXiv:2306.15595).
  double seq_len_interpolation_factor = 1;
  /// float32 or float64. Angles are computed in double and rounded once.
  DType dtype = kFloat32;
};

/// Table of positions 0 .. length-1. ValueError if length is negative, rotary_dim odd or below 2,
/// base or factor not positive; TypeError for another dtype.
RopeTable rope_table(int64_t length, int64_t rotary_dim, const RopeTableOptions& options = {});
/// The same for given frequencies (one per pair), for any scheme that changes them; cosines and
/// sines are multiplied by `factor`.
RopeTable rope_table(int64_t length,
                     std::span<const double> frequencies,
                     DType dtype = kFloat32,
                     double factor = 1);

struct RopeOptions {
  /// Pairs are (j, j + d/2), the half rotation of Hugging Face and Megatron; or, interleaved,
  /// (2j, 2j + 1) as in the original Llama files.
  bool interleaved = false;
  /// Position of x's first row: row s takes row position_offset + s of the table.
  int64_t position_offset = 0;
  /// int64 [B or 1, S]: rows of the table in place of those, for positions that begin again within
  /// a row. Undefined: as above.
  Tensor positions = {};
};

/// Rotates pairs (a, b) of channels: a' = a cos - b sin, b' = b cos + a sin.
///
/// x [B,H,S,D], any strides; the table's d channels are rotated, the others (d < D) copied. The
/// result has x's dtype and its order of axes in memory. 16-bit x is computed in float32. Linear:
/// saves only the table; its gradient is the rotation backwards. ValueError if x has not four axes,
/// the table is incomplete, d > D, or the table has fewer than position_offset + S rows, or
/// positions have another shape, lie outside the table or come with a position_offset; TypeError if
/// x is not floating, the table is float64 for another x, or positions are not int64. Source: Su et
/// al. 2021, arXiv:2104.09864.
Tensor rope(const Tensor& x, const RopeTable& table, const RopeOptions& options = {});
/// The same in elementary ops.
Tensor composed_rope(const Tensor& x, const RopeTable& table, const RopeOptions& options = {});

}  // namespace tapestry

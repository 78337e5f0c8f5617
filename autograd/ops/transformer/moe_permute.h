// Rows of tokens to rows sorted by expert, and back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// Where each kept assignment of tokens to experts lies among the rows sorted by expert. Assignment
/// t * topk + j is the j-th choice of token t.
struct RowMap {
  int64_t tokens = 0;
  int64_t topk = 0;
  std::vector<int32_t> rows;     ///< [tokens * topk]: the row of each assignment, -1: dropped
  std::vector<int32_t> sources;  ///< [R]: the assignment of each row
};

/// Sorts the assignments of tokens to experts [tokens * topk] by expert and, within an expert, by
/// token (a stable counting sort). Those whose `kept` [tokens * topk] is 0 are left out; empty:
/// none is. `counts` becomes the rows of each expert, [num_experts].
///
/// ValueError if topk or num_experts is less than 1, sizes do not fit, or there are more than
/// 2^31 - 1 assignments; IndexError for an expert outside [0, num_experts), also of an assignment
/// that is not kept.
RowMap row_map(std::span<const int32_t> experts,
               int64_t topk,
               int64_t num_experts,
               std::span<const uint8_t> kept,
               std::vector<int64_t>& counts);

/// y[r] = x[sources[r] / topk]: x [tokens, H], y [R, H]. Any floating dtype and strides.
/// The gradient of a token is the sum of those of its rows (zero if it has none), in the order of
/// rows, in float32 for 16-bit dtypes and rounded once. Nothing but the map is saved. ValueError if
/// the map does not fit x or is not one as row_map() makes it.
Tensor moe_permute(const Tensor& x, const RowMap& map);

/// y[t] = sum over the kept assignments (t, j) of gates[t, j] x[rows[t, j]], in the order of rows,
/// which is that of experts: x [R, H], y [tokens, H]. Floating dtypes, any strides. The sum is in
/// float32 for 16-bit x and rounded once; no row is copied. gates [tokens, topk] are float32
/// (float64 with float64 x), or undefined: all are 1.
///
/// dx[r] = gates[t, j] dy[t], dgates[t, j] = dy[t] . x[r], in float32 for 16-bit x, and 0 for a
/// dropped assignment. Saves x, if gates want a gradient, gates and the map. ValueError if map or
/// shapes do not fit, TypeError for other dtypes.
Tensor moe_unpermute(const Tensor& x, const Tensor& gates, const RowMap& map);

}  // namespace tapestry

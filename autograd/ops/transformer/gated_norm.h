// The norms with a gate at the end of recurrent layers.
#pragma once

#include <cstdint>
#include <optional>

#include "autograd/tensor/tensor.h"

namespace tapestry {

enum class GatedNormOrder : uint8_t {
  kNormThenGate,  ///< u = x, y = u rstd gain silu(z): gated delta nets, arXiv:2412.06464
  kGateThenNorm,  ///< u = x silu(z), y = u rstd gain: Mamba-2, arXiv:2405.21060
};

struct GatedNormOptions {
  double eps = 1e-5;
  /// Elements that are normalised together; divides n. 0: n.
  int64_t group_size = 0;
  GatedNormOrder order = GatedNormOrder::kNormThenGate;
  /// [..., n / group_size], float32 (float64 for float64), differentiable: the means of u^2, where
  /// x has a part of each group only. Undefined: those of x's own groups. See
  /// gated_sum_of_squares().
  Tensor mean_squares = {};
  /// Of y; x's if not given.
  std::optional<DType> dtype = std::nullopt;
};

/// Root-mean-square norm of the groups of x's last axis, gated by z: y as GatedNormOrder says with
/// rstd = 1 / sqrt(mean(u^2) + eps) of each group.
///
/// x and z [..., n] of one shape and floating dtypes of their own; y [..., n], contiguous. gain
/// [n], or [group_size] for all groups, or undefined (ones), has y's dtype or float32. float64 goes
/// with float64 only (TypeError). Rows with a dense last axis that lie evenly, such as columns of a
/// wider matrix, are read in place. Everything is computed in float32 (float64), squares are summed
/// in float64, and results are rounded once. The gain's gradient goes straight into its main_grad,
/// where it has one. Saves x, z, gain and one number for each group. ValueError if x has no axis,
/// shapes disagree, group_size does not divide n, or eps is negative.
Tensor gated_rms_norm(const Tensor& x,
                      const Tensor& z,
                      const Tensor& gain,
                      const GatedNormOptions& options = {});

/// [..., n / group_size], float32 (float64 for float64): the sums of u^2. Where tensor-parallel
/// ranks have parts of each group, every rank normalises by the sum over all of them:
///
///   const Tensor squares = copy_to_model_parallel_region(
///       reduce_from_model_parallel_region(gated_sum_of_squares(x, z, options), group), group);
///   options.mean_squares = squares / elements_of_a_group;  // on all ranks together
///   y = gated_rms_norm(x, z, gain, options);
///
/// Of options, group_size and order are read. With kNormThenGate z may be undefined. Saves x and z.
Tensor gated_sum_of_squares(const Tensor& x, const Tensor& z, const GatedNormOptions& options = {});

/// The same functions in elementary ops.
Tensor composed_gated_rms_norm(const Tensor& x,
                               const Tensor& z,
                               const Tensor& gain,
                               const GatedNormOptions& options = {});
Tensor composed_gated_sum_of_squares(const Tensor& x,
                                     const Tensor& z,
                                     const GatedNormOptions& options = {});

}  // namespace tapestry

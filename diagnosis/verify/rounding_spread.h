// How far a training moves when only rounding moves: what layouts may differ by.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "autograd/kernels/machine/dtype.h"
#include "diagnosis/verify/layout_findings.h"
#include "parallel_core/dist_checkpointing/logical_state.h"

namespace tapestry {

/// The weights, some replaced by a number next to them in `compute_dtype`, above or below by chance
/// (`draw` chooses another chance): w (1 +- u) with u the largest relative rounding of the dtype.
/// In float32 every weight, as each of the additions in a product rounds; with 16-bit compute,
/// where sums are in float32 and rounded once, one in twelve: the variance of one rounding is a
/// twelfth of a unit in the last place, squared. Zeros stay.
LogicalState moved_by_rounding(const LogicalState& weights, DType compute_dtype, uint64_t draw);

/// Distances between trainings of one process that differ by moved_by_rounding alone. They depend
/// on the model, its data, the step and the processor, as do those between a layout and one
/// process: cutting a sum over ranks rounds its parts, in each layer and in both passes.
class RoundingSpread {
 public:
  /// Bounds are this many times the largest distance that was measured. A layout is one draw
  /// against the largest of few, with up to as many roundings again for each place where it cuts
  /// sums: that is a factor of 3, and as much again for the tails of updates, where AdamW makes
  /// whole steps of rounding.
  static constexpr double kMultiple = 8;

  /// One distance that was measured.
  void add(const Finding& finding);

  /// Largest distance that is rounding, of values of the finding's kind in its step. Tensors of a
  /// kind share it, and a step has at least that of the steps before: a single number may come out
  /// equal by chance. For the same reason loss and norm share theirs.
  double bound_of(const Finding& finding) const;

 private:
  std::map<std::pair<Compared, ZeroGradient>, std::map<int64_t, double>> largest_;
};

}  // namespace tapestry

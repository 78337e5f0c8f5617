// How far a training of one process moves when only rounding moves, for the bounds of layouts.
#pragma once

#include <algorithm>
#include <cstdint>

#include "diagnosis/verify/rounding_spread.h"
#include "tests/cpu_levels.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry::testing {

/// Calls look(train(start)) for runs that differ from train(start) by rounding alone: from weights
/// that are moved by a rounding, and at the lowest CPU level, which adds up in another order.
template <class Train, class Look>
void with_other_rounding(const State& start,
                         DType compute_dtype,
                         const Train& train,
                         const Look& look) {
  constexpr uint64_t kDraws = 3;
  for (uint64_t draw = 0; draw < kDraws; ++draw) {
    look(train(moved_by_rounding(start, compute_dtype, draw)));
  }
  if (cpu_level() != CpuLevel::kPortable) {
    const CpuLevelGuard guard(CpuLevel::kPortable);
    look(train(start));
  }
}

/// What a layout may differ by where these runs differ by `largest`. Of single numbers, which come
/// out equal by chance, take several together.
inline double bound_of_spread(double largest) {
  constexpr double kFloat32Rounding = 0x1p-24;
  return RoundingSpread::kMultiple * std::max(largest, kFloat32Rounding);
}

}  // namespace tapestry::testing

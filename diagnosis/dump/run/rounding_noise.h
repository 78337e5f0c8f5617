// Results that are rounded otherwise: what a computation may be off by on another machine.
#pragma once

#include <cstdint>

#include "autograd/tape/observer.h"

namespace tapestry {

/// While it is told of ops, moves the floating results of each by up to half a unit in the last
/// place, by chance: every fourth element to a neighbouring number, half of these up, which has the
/// variance of a rounding that is uniform within half a unit. Zeros, infinities and NaN stay, and
/// so does what shares memory with an input (views; changes in place). `draw` chooses another
/// chance; the same ops in the same order are moved alike. Both passes; what is made again in
/// backward is not moved.
class RoundingNoise final : public Observer {
 public:
  explicit RoundingNoise(uint64_t draw) : draw_(draw) {}

  void op_ended(const OpRun& run) override;

  int64_t moved_ops() const { return static_cast<int64_t>(ops_); }

 private:
  uint64_t draw_;
  uint64_t ops_ = 0;
};

}  // namespace tapestry

// What a stage's share of a model takes, part by part.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel_core/planning/costs/pass_time.h"

namespace tapestry::planning {

/// Seconds of one micro-batch and one step of a ShareModel, with what its ranks say to each other.
struct PartTimes {
  std::vector<PassTime> layers;
  PassTime before;        ///< embeddings
  PassTime after;         ///< last norm, head, loss
  double reduce = 0;      ///< sums of gradients behind the passes
  double update = 0;      ///< gradient norm, clipping, optimizer, weights brought together
  double fixed = 0;       ///< the rest of a step
  double parameters = 0;  ///< that a rank has

  /// Of a step of so many micro-batches.
  double step(double micro_batches) const;
  PartTimes& operator+=(const PartTimes& other);
  PartTimes& operator*=(double factor);  ///< but for the parameters
};

}  // namespace tapestry::planning

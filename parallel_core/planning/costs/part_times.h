// What a rank's share of a model takes, part by part.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel_core/planning/costs/pass_time.h"

namespace tapestry::planning {

/// Seconds of one micro-batch and one step of a ShareModel.
struct PartTimes {
  /// A layer's.
  struct Layer {
    PassTime all;
    PassTime attention;  ///< of these, scores and their products with values
    PassTime norms;      ///< and what sequence parallelism divides: norms, sums, dropout
  };
  std::vector<Layer> layers;
  PassTime before;        ///< embeddings
  PassTime after;         ///< last norm, head, loss
  double update = 0;      ///< gradient norm, clipping, optimizer
  double fixed = 0;       ///< the rest of a step
  double parameters = 0;  ///< that the update is of
};

}  // namespace tapestry::planning

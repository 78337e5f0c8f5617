// Layers without attention once more, token by token, in float64 and elementary operations.
#pragma once

#include <string>
#include <vector>

#include "parallel_core/config/config.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry::testing {

/// What the mixer of a layer makes of x [S, H], one row of a batch. `weights` are logical, in
/// float64; documents of the row begin at `starts`, and at 0.
Tensor plain_mixer(const TransformerConfig& config,
                   int64_t layer,
                   const Tensor& x,
                   const State& weights,
                   const std::vector<int64_t>& starts);

}  // namespace tapestry::testing

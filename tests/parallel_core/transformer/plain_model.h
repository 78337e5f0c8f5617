// The model once more, in float64 and elementary operations only, from unfused weights.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/data/data_source.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry::testing {

struct PlainResult {
  Tensor logits;  ///< [B, S, V]
  double loss = 0;
  std::vector<double> ahead;  ///< of each depth (mtp_num_layers) what it adds to the objective
  State gradients;            ///< by logical name
};

/// Forward and backward of one batch with the given logical weights, backward of the loss and what
/// further predictions add.
PlainResult run_plain_model(const TransformerConfig& config,
                            const State& weights,
                            const data::Batch& batch);

}  // namespace tapestry::testing

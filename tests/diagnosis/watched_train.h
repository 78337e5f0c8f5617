// The training loop as programs run it: with the pieces that diagnosis gives to a run.
#pragma once

#include <utility>

#include "diagnosis/run_parts.h"
#include "parallel_core/training/training.h"

namespace tapestry::testing {

inline TrainSummary watched_train(TrainOneStepCell& cell,
                                  data::DataSource& source,
                                  const AllConfig& config,
                                  TrainOptions options) {
  const auto parts = make_parts(diagnosis::run_parts());
  options.parts = pointers_to(parts);
  return train(cell, source, config, options);
}

}  // namespace tapestry::testing

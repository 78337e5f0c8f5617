// The losses of a step or an evaluation in exact mode: sums over all tokens, rounded once.
#pragma once

#include <vector>

#include "autograd/kernels/exact/exact_scalar.h"
#include "parallel_core/pipeline_parallel/parallel_model.h"

namespace tapestry {

class ExactLosses {
 public:
  /// Of the next token, and of so many depths ahead.
  explicit ExactLosses(int64_t depths = 0) : ahead_(static_cast<size_t>(depths)) {}

  /// Adds a micro-batch, on the last stage of a pipeline; returns its mean loss, over whole
  /// sequences. Collective over ranks that divide these. RuntimeError for a model that has no exact
  /// losses.
  double add(const ParallelModel& model, const ModelOutput& output);

  /// Brings together what all ranks have. Collective, on all stages.
  void sum_over_ranks();

  /// Sums over all tokens, after that.
  double sum() const { return own_.value(); }
  double sum_ahead(size_t depth) const { return ahead_[depth].value(); }

 private:
  kernels::ExactSum own_;
  std::vector<kernels::ExactSum> ahead_;
};

}  // namespace tapestry

// One pass of new tokens through a model that keeps keys and values, over all stages.
#pragma once

#include <span>
#include <vector>

#include "parallel_core/pipeline_parallel/parallel_model.h"
#include "parallel_core/transformer/kv_cache.h"

namespace tapestry {

/// The logits of step.logits_of, [M, V] float32, contiguous; undefined on all stages but the last,
/// and where none are wanted. `tokens` are those of the segments.
Tensor cached_logits(ParallelModel& model,
                     const std::vector<int64_t>& tokens,
                     const CachedStep& step);

/// Whether all stages of the pipeline can, each of which says so of itself.
bool all_stages_can(bool can);

/// Replaces the values by those of the last stage, on all of them. Each has as many.
void take_from_last_stage(std::span<double> values);

/// Dropout off while it lives; afterwards the model is in the mode that it had.
class EvaluationMode {
 public:
  explicit EvaluationMode(nn::Module& model) : model_(model), training_(model.is_training()) {
    if (training_) {
      model_.eval();
    }
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;
  ~EvaluationMode() {
    if (training_) {
      model_.train();
    }
  }

 private:
  nn::Module& model_;
  bool training_;
};

}  // namespace tapestry

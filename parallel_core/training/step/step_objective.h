// What a step minimises in place of the mean cross entropy of its tokens.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "parallel_core/data/data_source.h"
#include "parallel_core/pipeline_parallel/parallel_model.h"

namespace tapestry {

/// Names and values, in the order in which they are shown.
using NamedValues = std::vector<std::pair<std::string, double>>;

/// The objective of a task. All ranks have one and make the same calls.
class StepObjective {
 public:
  StepObjective() = default;
  StepObjective(const StepObjective&) = delete;
  StepObjective& operator=(const StepObjective&) = delete;
  virtual ~StepObjective() = default;

  /// Before the passes of a step, which counts from 1, with the micro-batches of this rank: what
  /// losses need to know of the whole step (counts, orders, reference points). Collective; may run
  /// the model without gradients. `training` is false for an evaluation.
  virtual void begin_step(ParallelModel& model,
                          int64_t step,
                          const std::vector<data::Batch>& micro_batches,
                          bool training) = 0;
  /// What the model is to tell of the tokens of a micro-batch; null: nothing but its output.
  virtual const TokenScoresRequest* scores() const = 0;
  /// Called on the last stage for each micro-batch: its part of the step's loss, a float32 scalar
  /// to run backwards from. The parts of all micro-batches of all data-parallel ranks are summed to
  /// the loss.
  virtual Tensor part(int64_t micro_batch, const data::Batch& batch, ModelOutput& output) = 0;
  /// After the passes: what the task measures, by TRL's names, the same on every rank. Collective
  /// over the whole job.
  virtual NamedValues finish_step() = 0;
};

}  // namespace tapestry

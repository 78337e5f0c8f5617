// Losses on data that a run does not train on.
#pragma once

#include <cstdint>
#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/data/data_source.h"
#include "parallel_core/pipeline_parallel/parallel_model.h"
#include "parallel_core/training/step/step_observer.h"

namespace tapestry {

/// The micro-batches of this rank in the step at a position.
std::vector<data::Batch> step_batches(data::DataSource& source,
                                      const AllConfig& config,
                                      data::BatchPosition position);

/// Mean loss per token over `iterations` global batches, in evaluation mode. Fewer if the source
/// ends before; ValueError if it has not even one.
double evaluate(ParallelModel& model,
                data::DataSource& source,
                const AllConfig& config,
                int64_t iterations);

/// "eval: Step:100, Loss: 4.210932, Perplexity: 67.4194"; `part` is eval or test.
std::string eval_log_line(const char* part, int64_t step, double loss);

/// Evaluates on the validation part at eval_interval, and on the test part after the last step.
class StepEvaluation final : public StepObserver {
 public:
  /// All arguments outlive the object; null: no such part.
  StepEvaluation(ParallelModel& model,
                 const AllConfig& config,
                 data::DataSource* validation,
                 data::DataSource* test)
      : model_(model), config_(config), validation_(validation), test_(test) {}
  StepPhase phase() const override { return StepPhase::kEvaluation; }
  void after(FinishedStep& step) override;

 private:
  ParallelModel& model_;
  const AllConfig& config_;
  data::DataSource* validation_;
  data::DataSource* test_;
};

}  // namespace tapestry

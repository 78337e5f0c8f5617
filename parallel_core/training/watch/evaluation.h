// Losses on data that a run does not train on.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/data/data_source.h"
#include "parallel_core/pipeline_parallel/parallel_model.h"
#include "parallel_core/training/step/evaluation_metric.h"
#include "parallel_core/training/step/step_objective.h"
#include "parallel_core/training/step/step_observer.h"
#include "parallel_core/training/step/train_options.h"

namespace tapestry {

/// The micro-batches of this rank in the step at a position: `micro_batches` of them, or as many as
/// a step of the whole batch has.
std::vector<data::Batch> step_batches(data::DataSource& source,
                                      const AllConfig& config,
                                      data::BatchPosition position,
                                      std::optional<int64_t> micro_batches = std::nullopt);

/// Mean loss per token over `iterations` global batches, in evaluation mode. Fewer if the source
/// ends before; ValueError if it has not even one.
double evaluate(ParallelModel& model,
                data::DataSource& source,
                const AllConfig& config,
                int64_t iterations);

/// The loss and each metric, by name, over the same batches: the loss bit by bit that of
/// evaluate(), and all values the same on every rank. A metric costs a further forward pass, which
/// makes the logits of whole rows. ValueError also for a metric that does not measure as many
/// numbers each time.
std::map<std::string, double> evaluate_with(ParallelModel& model,
                                            data::DataSource& source,
                                            const AllConfig& config,
                                            int64_t iterations,
                                            const std::vector<EvaluationMetric>& metrics);

/// What a task's objective says of the data: its loss as "loss", and what it measures by name, each
/// the mean over `iterations` global batches, or as many as there are, of which the last one may be
/// smaller; weighed with their sequences, so that each counts the same. Beside it the metrics of
/// evaluate_with. The same on every rank. `step` is that of the training. ValueError for a
/// training_config.eval_metric that is not among the values, if there is no sample, and as
/// evaluate_with.
std::map<std::string, double> evaluate_objective(ParallelModel& model,
                                                 StepObjective& objective,
                                                 data::DataSource& source,
                                                 const AllConfig& config,
                                                 int64_t iterations,
                                                 int64_t step,
                                                 const std::vector<EvaluationMetric>& metrics);

/// "eval: Step:100, Loss: 4.210932, Perplexity: 67.4194"; `part` is eval or test.
std::string eval_log_line(const char* part, int64_t step, double loss);

/// The same with the other values behind it, ", accuracy: 0.412346"; without a loss these alone.
std::string eval_log_line(const char* part,
                          int64_t step,
                          const std::optional<double>& loss,
                          const std::map<std::string, double>& values);

/// Evaluates on the validation part at eval_interval, and on the test part after the last step.
class StepEvaluation final : public StepObserver {
 public:
  /// All arguments outlive the object. ValueError as check_evaluation.
  StepEvaluation(ParallelModel& model, const AllConfig& config, const TrainOptions& options);
  StepPhase phase() const override { return StepPhase::kEvaluation; }
  void after(FinishedStep& step) override;

 private:
  std::map<std::string, double> values_of(data::DataSource& source, int64_t step, bool of_test);

  ParallelModel& model_;
  const AllConfig& config_;
  const TrainOptions& options_;
};

}  // namespace tapestry

// The training loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/data/data_source.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/training/get_model.h"
#include "parallel_core/training/metrics.h"
#include "parallel_core/training/progress.h"
#include "parallel_core/training/train_one_step.h"
#include "parallel_core/training/trainer_state.h"

namespace tapestry {

/// Mean loss per token over `iterations` global batches, in evaluation mode. Fewer if the source
/// ends before; ValueError if it has not even one.
double evaluate(ParallelModel& model,
                data::DataSource& source,
                const AllConfig& config,
                int64_t iterations);

/// "eval: Step:100, Loss: 4.210932, Perplexity: 67.4194"; `part` is eval or test.
std::string eval_log_line(const char* part, int64_t step, double loss);

/// The line that log readers know:
/// "train: Epoch:0, Step:5, Loss: 10.341485, Finite_grads: True, Loss_scale: 4096.0,
/// Learning_rate: (1.250000e-06,1.250000e-06,), Time: 1403.24 ms".
std::string train_log_line(const StepRecord& record, const StepResult& result);

/// The same, and what happened since the last such line: ", Tokens/s: 1460, Mean_loss: 10.352117,
/// Remaining: 1:02:03"; without Remaining where the number of steps is not known.
std::string train_log_line(const StepRecord& record, const StepResult& result, const Pace& pace);

/// What the run saves and when: "checkpoints: at the end alone, ...".
std::string checkpoint_plan(const TrainingConfig& config);

/// "pipeline: stages waited for 12.50 % of the passes, theory 11.11 %".
std::string bubble_line(const PipelineBubble& bubble);

/// What the loop does besides stepping.
struct TrainOptions {
  data::DataSource* validation = nullptr;  ///< null: no evaluation
  data::DataSource* test = nullptr;        ///< evaluated after the last step; null: not
  MetricsWriter* metrics = nullptr;        ///< null: no metrics.jsonl
  CheckpointOptions checkpoint;            ///< without a directory: nothing is saved
  std::function<bool()> stop_requested;    ///< asked after each step; true ends the run
  /// Of the first step in the data; left out: as many steps as the cell has seen.
  std::optional<data::BatchPosition> start;
  /// Of the whole run, earlier parts included; left out: as the configuration says.
  std::optional<int64_t> total_steps;
  /// With what the checkpoints keep of the run: what is known before the first step (schedule,
  /// layout, and of a run that goes on its best evaluation, tokens and time), and the state of the
  /// data when the next step is the one at a position. Left out, they hold weights alone.
  std::optional<TrainerState> trainer;
  std::function<std::string(data::BatchPosition)> data_state;
};

/// How a run ended.
struct TrainSummary {
  int64_t steps = 0;
  double first_loss = 0;
  double last_loss = 0;
  std::optional<double> test_loss;  ///< after the last step, if there is a test part
  bool stopped_on_request = false;
};

/// Trains until training_iters, epochs or the data are used up; logs, evaluates, saves and dumps as
/// configured. The last step is followed by the evaluation on the test part; a requested stop is
/// not, and saves a checkpoint. What a save that fails means, and when older checkpoints go, says
/// CheckpointSaver; one at the end that fails is thrown.
///
/// RuntimeError, with what may help (DivergenceWatch), after max_nonfinite_steps steps in a row
/// that were not finite, and for a run that ends with a loss that is not, or without one finite
/// step; what such a run has in memory is not saved. StorageError for a full disk.
TrainSummary train(TrainOneStepCell& cell,
                   data::DataSource& source,
                   const AllConfig& config,
                   const TrainOptions& options);

}  // namespace tapestry

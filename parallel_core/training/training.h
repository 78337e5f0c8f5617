// The training loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/config/config.h"
#include "parallel_core/data/data_source.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/profile/memory_watch.h"
#include "parallel_core/training/evaluation.h"
#include "parallel_core/training/get_model.h"
#include "parallel_core/training/metrics.h"
#include "parallel_core/training/step_log.h"
#include "parallel_core/training/step_observer.h"
#include "parallel_core/training/train_one_step.h"
#include "parallel_core/training/trainer_state.h"

namespace tapestry {

/// A step has shown that the run must not go on: what the check that was asked for has found, and
/// what is saved. A failure of the run, not of its input.
class TrainingStopped : public ValueError {
  using ValueError::ValueError;
};

/// What the loop does besides stepping.
struct TrainOptions {
  data::DataSource* validation = nullptr;  ///< null: no evaluation
  data::DataSource* test = nullptr;        ///< evaluated after the last step; null: not
  MetricsWriter* metrics = nullptr;        ///< null: no metrics.jsonl
  /// See every step when its record is complete, before the log; the same on all ranks.
  std::vector<StepObserver*> observers;
  CheckpointOptions checkpoint;          ///< without a directory: nothing is saved
  std::string tokenizer_model;           ///< of the data: its file, for texts in reports; or empty
  std::function<bool()> stop_requested;  ///< asked after each step; true ends the run
  /// Of the first step in the data; left out: as many steps as the cell has seen.
  std::optional<data::BatchPosition> start;
  /// Of the whole run, earlier parts included; left out: as the configuration says.
  std::optional<int64_t> total_steps;
  /// With what the checkpoints keep of the run: what is known before the first step (schedule,
  /// layout, and of a run that goes on its best evaluation, tokens and time), and the state of the
  /// data when the next step is the one at a position. Left out, they hold weights alone.
  std::optional<TrainerState> trainer;
  std::function<std::string(data::BatchPosition)> data_state;
  /// Watches the rank's allocator since the run began, for its profile; null: nobody has.
  profile::MemoryWatch* memory_watch = nullptr;
  /// Of a step on the busiest rank, for logs; 0: not known.
  double step_flops = 0;
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
/// step; what such a run has in memory is not saved. TrainingStopped
/// where a check that was asked for ends the run. StorageError for a full disk.
TrainSummary train(TrainOneStepCell& cell,
                   data::DataSource& source,
                   const AllConfig& config,
                   const TrainOptions& options);

}  // namespace tapestry

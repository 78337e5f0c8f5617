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
#include "parallel_core/training/step/get_model.h"
#include "parallel_core/training/step/metrics.h"
#include "parallel_core/training/step/train_one_step.h"
#include "parallel_core/training/step/train_options.h"
#include "parallel_core/training/step/trainer_state.h"
#include "parallel_core/training/watch/evaluation.h"
#include "parallel_core/training/watch/step_log.h"

namespace tapestry {

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

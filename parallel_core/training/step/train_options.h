// What the training loop is asked to do.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/config/config.h"
#include "parallel_core/data/data_source.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/training/step/evaluation_metric.h"
#include "parallel_core/training/step/hashes_file.h"
#include "parallel_core/training/step/metrics.h"
#include "parallel_core/training/step/step_objective.h"
#include "parallel_core/training/step/step_observer.h"
#include "parallel_core/training/step/trainer_state.h"

namespace tapestry {

class RunPart;

/// A step has shown that the run must not go on: what the check that was asked for has found, and
/// what is saved. A failure of the run, not of its input.
class TrainingStopped : public ValueError {
  using ValueError::ValueError;
};

/// The data of a step cannot be had, for a reason that the run's past has no part in. Thrown by a
/// data source on all ranks alike, before anything of the step is computed: train() saves the steps
/// before it and ends with TrainingStopped.
class StepNotBegun : public RuntimeError {
  using RuntimeError::RuntimeError;
};

/// What the loop does besides stepping.
struct TrainOptions {
  data::DataSource* validation = nullptr;  ///< null: no evaluation
  data::DataSource* test = nullptr;        ///< evaluated after the last step; null: not
  /// Computed at every evaluation beside the loss.
  std::vector<EvaluationMetric> evaluation_metrics = {};
  /// In place of the library's evaluation; empty: that.
  EvaluationFunction evaluation = {};
  /// What the cell's steps minimise in place of the model's loss, which evaluations then measure;
  /// null: that.
  StepObjective* objective = nullptr;
  MetricsWriter* metrics = nullptr;  ///< null: no metrics.jsonl
  HashesFile* hashes = nullptr;      ///< of a run in exact mode; null: no hashes.jsonl
  /// See every step when its record is complete, before the log; the same on all ranks.
  std::vector<StepObserver*> observers;
  CheckpointOptions checkpoint;          ///< without a directory: nothing is saved
  std::string tokenizer_model;           ///< of the data: its file, for texts in reports; or empty
  std::function<bool()> stop_requested;  ///< asked after each step; true ends the run
  /// Of the first step in the data; left out: as many steps as the cell has seen.
  std::optional<data::BatchPosition> start;
  /// That the run has drawn before it, of whatever data; left out: those of the steps that the cell
  /// has seen.
  std::optional<int64_t> samples_done = std::nullopt;
  /// Of the whole run, earlier parts included; left out: as the configuration says.
  std::optional<int64_t> total_steps;
  /// With what the checkpoints keep of the run: what is known before the first step (schedule,
  /// layout, and of a run that goes on its best evaluation, tokens and time), and the state of the
  /// data when the next step is the one at a position. Left out, they hold weights alone.
  std::optional<TrainerState> trainer;
  std::function<std::string(data::BatchPosition)> data_state;
  /// Pieces of the loop that are made outside of it; see RunPart.
  std::vector<RunPart*> parts;
  /// Of a step on the busiest rank, for logs; 0: not known.
  double step_flops = 0;
};

}  // namespace tapestry

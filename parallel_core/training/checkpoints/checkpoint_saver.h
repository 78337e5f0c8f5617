// When a run saves, and what becomes of a save: in the background, failed, superseded.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "optim/optimizer.h"
#include "parallel_core/config/config.h"
#include "parallel_core/dist_checkpointing/checkpoint_writer.h"
#include "parallel_core/pipeline_parallel/parallel_model.h"
#include "parallel_core/training/step/trainer_state.h"

namespace tapestry {

/// Saves of a run, on every rank of it; calls that are marked are collective.
///
/// A save that fails for the medium's sake (a full disk, a file system that is gone) is a loud
/// warning, not the end of the run: the last good checkpoint stays, and the next attempts follow
/// after 1, 2, 4, ... steps, at most the interval. Weights that are not finite are a RuntimeError.
///
/// What a later update has spoilt must not take the place of good weights: older checkpoints go
/// only when a step has shown that the newest one's weights give a finite loss (accept()).
class CheckpointSaver {
 public:
  /// All arguments outlive the object. Without options.directory nothing is ever saved.
  CheckpointSaver(const ParallelModel& model,
                  const optim::Optimizer& optimizer,
                  const AllConfig& config,
                  CheckpointOptions options);
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;
  /// Waits for a save that is under way; what it was for is lost.
  ~CheckpointSaver();

  /// Whether a save is due after this step: by the interval, the clock (that of rank 0), or because
  /// one has failed. Collective where a clock decides.
  bool is_due(int64_t step);
  /// Saves, or with async_save takes a copy and goes on; waits first for a save under way. `state`
  /// is the trainer's object (trainer_state_json). Nothing if this step is saved already. With
  /// `last`, it returns when everything is on disk, and a failure, also of a folder that may not be
  /// written any more, is a StorageError. Collective.
  void save(int64_t step, const std::string& state, bool last = false);
  /// Ends a save under way if all ranks have written their parts. After each step; collective.
  void poll();
  /// Waits for a save under way. Collective.
  void finish();

  /// Called on every rank when a checkpoint is on disk under its name, before older ones may go,
  /// and on rank 0 after that: with the step, and with the names of checkpoints that are not to go.
  struct Observer {
    std::function<void(int64_t step, const std::string& folder)> saved;
    std::function<std::vector<std::string>()> kept;
    std::function<void()> removed;
  };
  void set_observer(Observer observer) { observer_ = std::move(observer); }

  /// A step has had a finite loss with the weights of all saves so far.
  void accept();

  /// The evaluation that the next one is held against: the last one proposed whose checkpoint may
  /// still come to be, or else the one of best_saved().
  std::optional<BestEvaluation> best() const;
  /// An evaluation better than best(), whose step is saved next. Only when its checkpoint is on
  /// disk it takes the place of the one before, in best.json and as the checkpoint that is kept; if
  /// its save fails it is forgotten.
  void propose_best(const BestEvaluation& best) { candidates_.push_back(best); }
  /// Of a run that goes on. best.json is made to name its checkpoint if that is in this folder, and
  /// removed if it is not.
  void take_up_best(const std::optional<BestEvaluation>& best);

  std::optional<int64_t> saved_step() const { return saved_step_; }
  /// What the last one has taken.
  std::optional<int64_t> saved_bytes() const { return saved_bytes_; }
  std::optional<int64_t> proven_step() const { return proven_step_; }
  /// Puts aside the newest checkpoint if no step has shown its weights good, and says so; else an
  /// empty text. If it was the best, the one before is again. For a run that has diverged.
  std::string set_unproven_aside();
  /// Steps since the last save that has succeeded are at risk: for the log.
  bool has_failed() const { return failed_step_.has_value(); }

 private:
  void start(int64_t step, const std::string& state);
  void start_writing();
  /// Until all ranks have written their parts. They ask each other all the time meanwhile, so that
  /// nobody takes a rank with a slow disk for one that is gone.
  void wait_for_all();
  void complete();
  void note_success(const std::string& folder);
  void note_failure(const std::string& what);
  /// Evaluations up to the step whose save has ended.
  void forget_candidates();
  void remove_old();
  /// Makes best.json name the best checkpoint, or be absent where there is none. On rank 0; a
  /// failure is a loud warning, and the next save tries again.
  void name_best();
  /// With keep_checkpoint_per_n_minutes: whether this one is kept for good.
  bool begins_interval();

  const ParallelModel& model_;
  const optim::Optimizer& optimizer_;
  const AllConfig& config_;
  CheckpointOptions options_;
  std::unique_ptr<CheckpointWriter> writer_;  // of a save under way
  std::thread worker_;
  std::shared_ptr<std::atomic<bool>> written_;
  int64_t writing_step_ = 0;
  std::chrono::steady_clock::time_point last_save_;
  std::optional<int64_t> saved_step_;
  std::optional<int64_t> saved_bytes_;
  std::optional<int64_t> proven_step_;
  bool accepted_while_writing_ = false;
  std::string newest_;
  std::vector<std::string> passing_;  // that later ones take the place of; see begins_interval
  std::optional<std::chrono::steady_clock::time_point> interval_start_;
  std::optional<BestEvaluation> best_;         // its checkpoint is on disk
  std::optional<BestEvaluation> best_before_;  // the one before, until best_ is proven
  std::vector<BestEvaluation> candidates_;     // their checkpoints are not on disk yet
  std::string named_best_;                     // the checkpoint in best.json, on rank 0
  Observer observer_;
  std::optional<int64_t> failed_step_;  // since when nothing could be saved
  int64_t retry_step_ = 0;
  int64_t retry_distance_ = 1;
};

/// Whether an evaluation is the best so far, by training_config.best_metric_comparison: `value` of
/// eval_metric against the earlier best, if there is one.
bool is_better(const TrainingConfig& config,
               double value,
               const std::optional<BestEvaluation>& best);

}  // namespace tapestry

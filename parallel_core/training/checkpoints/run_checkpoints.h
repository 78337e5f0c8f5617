// The checkpoints of a run, with what they hold of its state, and the end of a run that has failed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/training/checkpoints/checkpoint_saver.h"
#include "parallel_core/training/files/disk_room.h"
#include "parallel_core/training/step/step_observer.h"
#include "parallel_core/training/step/train_options.h"
#include "parallel_core/training/watch/checkpoint_health.h"
#include "parallel_core/training/watch/divergence.h"

namespace tapestry {

/// What the run saves and when: "checkpoints: at the end alone, ...".
std::string checkpoint_plan(const TrainingConfig& config);

/// Saves as configured, and ends a run whose steps are not finite any more or which another piece
/// has found bad: the last piece of the loop.
class RunCheckpoints final : public StepObserver {
 public:
  /// All arguments outlive the object.
  RunCheckpoints(TrainOneStepCell& cell, const AllConfig& config, const TrainOptions& options);

  /// The first piece of the loop: ends saves that are done, and lets checkpoints go that the step's
  /// finite loss has made superfluous, whatever the other pieces find.
  StepObserver& acceptance() { return acceptance_; }
  /// All pieces of the loop, this one among them: what they know of the past goes with every
  /// checkpoint. They outlive the object.
  void set_pieces(std::vector<StepObserver*> pieces) { pieces_ = std::move(pieces); }
  void save_past(TrainerState& state) const override { state.divergence = watch_.past(); }
  void load_past(const TrainerState& state) override;
  /// RuntimeError where the run has diverged, TrainingStopped with step.failure where there is one;
  /// both say what is saved.
  StepPhase phase() const override { return StepPhase::kCheckpoints; }
  void after(FinishedStep& step) override;
  /// After the last step: a save under way ends, the last checkpoint is written. RuntimeError for a
  /// run that ends badly, or that went to its end and was worse there than at its beginning
  /// (DivergenceWatch); the latter is saved nevertheless.
  void finish(bool stopped_on_request);
  /// Of the last checkpoint of this start.
  std::optional<int64_t> saved_step() const { return saver_.saved_step(); }

 private:
  class Acceptance final : public StepObserver {
   public:
    explicit Acceptance(RunCheckpoints& owner) : owner_(owner) {}
    StepPhase phase() const override { return StepPhase::kAcceptance; }
    void after(FinishedStep& step) override { owner_.accept(step); }

   private:
    RunCheckpoints& owner_;
  };

  void accept(const FinishedStep& step);
  /// Ends saves and says what is left of them.
  std::string aftermath();
  [[noreturn]] void fail();
  bool is_best(const StepRecord& record);
  void save(bool last);
  void keep_health();
  void record_health(int64_t step, const std::string& folder);
  std::vector<std::string> healthy_to_keep() const;
  void forget_removed();
  void write_health() const;

  TrainOneStepCell& cell_;
  const AllConfig& config_;
  const TrainOptions& options_;
  DivergenceWatch watch_;
  CheckpointSaver saver_;
  DiskWatch disk_;
  Acceptance acceptance_;
  TrainerState trainer_;
  std::vector<StepObserver*> pieces_;
  std::string health_path_;             // empty: nothing is recorded
  HealthRecord health_;                 // on rank 0
  std::map<int64_t, bool> is_healthy_;  // of checkpoints that are not on disk yet
  // of the last step
  int64_t step_ = 0;  // 0: there was none
  data::BatchPosition next_;
  std::optional<double> embedding_norm_;
};

}  // namespace tapestry

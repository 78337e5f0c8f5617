// Profiles the steps that the configuration names.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "autograd/tape/observer.h"
#include "diagnosis/profile/machine_peak.h"
#include "diagnosis/profile/memory_watch.h"
#include "diagnosis/profile/rank_files.h"
#include "diagnosis/profile/recorder.h"
#include "diagnosis/profile/window_file.h"
#include "parallel_core/config/config.h"
#include "parallel_core/training/step/step_observer.h"
#include "parallel_core/training/step/train_one_step.h"

namespace tapestry {

/// Folder of a run's profiles: profile_save_path, or `profile` in the run's own.
std::string profile_folder(const TrainingConfig& config);

/// IoError for what would stop a profile when it is written, or the file that steers it: a path
/// that is not there or is something else. Nothing where the configuration profiles nothing.
void check_profile(const TrainingConfig& config);

/// The last piece of the loop, so that evaluations and checkpoints are within the last profiled
/// step's recording. What it writes is said in docs/profile.md. A profile that cannot be written is
/// an error in the log, no end of the run.
class StepProfiler final : public StepObserver {
 public:
  /// All arguments outlive the object. `memory` watches the rank's allocator, if it has been
  /// watched since the run began; else null, and with profile_memory the object does.
  StepProfiler(TrainOneStepCell& cell, const AllConfig& config, profile::MemoryWatch* memory);
  ~StepProfiler() override;

  StepPhase phase() const override { return StepPhase::kProfile; }
  void before(int64_t step) override;
  void after(FinishedStep& step) override;
  /// The run is over: ends a recording that goes on. Collective.
  void end() override;

 private:
  void read_request(int64_t step);
  void start(int64_t step);
  void stop();
  void write(profile::RankProfile profile);

  TrainOneStepCell& cell_;
  const AllConfig& config_;
  TrainingConfig settings_;  // those of the window: a file may change some
  std::string folder_;       // of the window
  int64_t first_ = 0;        // of the window; 0: there is none to come
  int64_t last_ = 0;
  std::optional<profile::WatchedText> requests_;
  std::optional<profile::MachinePeak> peak_;
  std::unique_ptr<profile::MemoryWatch> own_memory_;
  profile::MemoryWatch* memory_;
  bool states_are_labelled_ = false;
  std::optional<profile::Recorder> recorder_;  // while steps are recorded
  profile::ClockSamples started_;
  std::optional<ObserverScope> scope_;
};

}  // namespace tapestry

// The hash of each step in exact mode.
#pragma once

#include <optional>
#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/training/step/hashes_file.h"
#include "parallel_core/training/step/step_observer.h"

namespace tapestry {

/// Writes CLASS:HEX into the record (StepRecord::hash), and what each tensor hashes to into a file.
/// Says the class once in the log.
class HashLog final : public StepObserver {
 public:
  /// All ranks have one; those without a file give null. The cell and the file outlive the object.
  /// Collective over the world.
  HashLog(TrainOneStepCell& cell, const AllConfig& config, HashesFile* file);

  StepPhase phase() const override { return StepPhase::kMonitors; }
  void after(FinishedStep& step) override;

 private:
  std::string class_;
  HashesFile* file_;
  StateHash weights_;
  std::optional<StateHash> gradients_;
};

}  // namespace tapestry

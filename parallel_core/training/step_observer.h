// What happens after a step of the training loop, as a list of pieces.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel_core/data/data_source.h"
#include "parallel_core/training/metrics.h"
#include "parallel_core/training/train_one_step.h"

namespace tapestry {

struct TrainerState;

/// A step that is done. Pieces add what they find to the record, for those that come after them.
struct FinishedStep {
  StepRecord record;
  StepResult result;
  data::BatchPosition next;  ///< of the step that follows
  bool is_last = false;      ///< the run has its length
  bool stops = false;        ///< set by a piece: the run ends here, as if it had been asked to
  std::vector<std::string> lines;     ///< for the log, after the step's own line
  std::vector<std::string> warnings;  ///< the same, as warnings
  /// Why the run ends with an error here: set by a piece on all ranks alike, thrown when all have
  /// seen the step.
  std::string failure;
};

/// A piece of the loop that looks at every step. All ranks have the same pieces in the same order,
/// so that they may be collective.
class StepObserver {
 public:
  StepObserver() = default;
  StepObserver(const StepObserver&) = delete;
  StepObserver& operator=(const StepObserver&) = delete;
  virtual ~StepObserver() = default;

  /// Before a step, counted from 1 over the whole run.
  virtual void before(int64_t /*step*/) {}
  virtual void after(FinishedStep& step) = 0;
  /// Before a checkpoint is saved, which must not know of steps that a file of the piece lacks.
  virtual void flush() {}
  /// What the piece decides from of earlier steps goes with every checkpoint, and comes back before
  /// the first step of a run that goes on with it.
  virtual void save_past(TrainerState& /*state*/) const {}
  virtual void load_past(const TrainerState& /*state*/) {}
};

}  // namespace tapestry

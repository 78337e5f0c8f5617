// What happens after a step of the training loop, as a list of pieces.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel_core/data/data_source.h"
#include "parallel_core/training/step/metrics.h"
#include "parallel_core/training/step/train_one_step.h"

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

/// The order in which pieces see a finished step; those of one phase in the order of their making.
/// Each may read what earlier phases have added to the step's record.
enum class StepPhase : uint8_t {
  kAcceptance,   ///< the last checkpoint is told whether this step shows it to be healthy
  kDumps,        ///< what the step computed is written, before anything else runs the model
  kEvaluation,   ///< losses on the other parts of the data join the record
  kMonitors,     ///< norms, skipped steps and watched values join the record
  kGuards,       ///< a step that is not finite may end the run: it is in the record by now
  kAutopsy,      ///< the cause of a bad step joins the lines, for the log and as the reason to end
  kRecord,       ///< the record is complete and is written to metrics.jsonl
  kFurther,      ///< the program's own pieces: they see what metrics.jsonl has
  kLog,          ///< the step's line, and the lines that others have added
  kCheckpoints,  ///< the step is saved, with all that earlier phases keep; the run may end here
  kProfile,      ///< last, so that a recording holds all of the above
};

/// A piece of the loop that looks at every step. All ranks have the same pieces in the same order,
/// so that they may be collective.
class StepObserver {
 public:
  StepObserver() = default;
  StepObserver(const StepObserver&) = delete;
  StepObserver& operator=(const StepObserver&) = delete;
  virtual ~StepObserver() = default;

  virtual StepPhase phase() const { return StepPhase::kFurther; }
  /// Before a step, counted from 1 over the whole run.
  virtual void before(int64_t /*step*/) {}
  virtual void after(FinishedStep& step) = 0;
  /// Before a checkpoint is saved, which must not know of steps that a file of the piece lacks.
  virtual void flush() {}
  /// The loop is over, without an error; all ranks call it.
  virtual void end() {}
  /// What the piece decides from of earlier steps goes with every checkpoint, and comes back before
  /// the first step of a run that goes on with it.
  virtual void save_past(TrainerState& /*state*/) const {}
  virtual void load_past(const TrainerState& /*state*/) {}
};

}  // namespace tapestry

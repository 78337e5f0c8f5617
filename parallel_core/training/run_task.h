// What a run trains for beside the next token: handed in by programs, as `post_training` has them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel_core/comm/process_group.h"
#include "parallel_core/config/config.h"
#include "parallel_core/training/data/run_data.h"
#include "parallel_core/training/step/step_objective.h"
#include "parallel_core/training/step/step_observer.h"

namespace tapestry {

/// The model of a run before its training: its weights are those that training starts with, or of a
/// run that goes on those of the checkpoint.
struct ModelBeforeTraining {
  ParallelModel& model;
  /// A run that goes on with this checkpoint; empty: one that begins.
  std::string checkpoint;
  /// Loads the weights of a folder or file, or for an empty path those that training started with,
  /// in place of these, in the same memory. Of a run with adapters a folder is that of a model,
  /// with which adapters keep their values (AdaptersOff), or of an adapter. The run brings its own
  /// back when prepare() is done. Collective. ValueError where they do not fit, and for the start
  /// of a run that goes on with weights whose start is not known: load_checkpoint names a
  /// checkpoint of the run itself.
  std::function<void(const std::string& path)> load;
};

/// The task of one run on one rank; every rank has the same one, and all calls are collective. They
/// come in this order.
class RunTask {
 public:
  RunTask() = default;
  RunTask(const RunTask&) = delete;
  RunTask& operator=(const RunTask&) = delete;
  virtual ~RunTask() = default;

  /// The run's data, as open_data() opens those of other runs.
  virtual RunData open_data(const AllConfig& config,
                            ProcessGroup& world,
                            DataUse use,
                            const DataState* resumed) = 0;
  /// False: the data are made with the model, so nothing can be read before it is there.
  virtual bool has_data_before_model() const { return true; }
  /// Computes whatever the task needs of a model that is not trained yet.
  virtual void prepare(const AllConfig& /*config*/, const ModelBeforeTraining& /*model*/) {}
  /// What steps minimise. The cell outlives it.
  virtual std::unique_ptr<StepObjective> objective(const AllConfig& config,
                                                   TrainOneStepCell& cell) = 0;
  /// Pieces of the loop that the task brings, in this order.
  virtual std::vector<std::unique_ptr<StepObserver>> observers(const AllConfig& /*config*/,
                                                               TrainOneStepCell& /*cell*/) {
    return {};
  }
};

/// Makes the task of a configuration (post_training_config.task); null where it asks for none.
using RunTaskFactory = std::function<std::unique_ptr<RunTask>(const AllConfig& config)>;

}  // namespace tapestry

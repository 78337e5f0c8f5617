// Runs steps of a run in exact mode again, from one of its checkpoints, without changing anything
// of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "diagnosis/accuracy/run_hashes.h"
#include "diagnosis/accuracy/step_rerun.h"
#include "parallel_core/comm/process_group.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/training/pretrain.h"

namespace tapestry {

struct RerunOptions {
  /// Of the job; parts and task of the program; observers of the steps.
  PretrainOptions training = {};
  std::string checkpoint;  ///< a folder step_%08d to go on from; empty: the start of the run
  int64_t step = 1;        ///< the last one that is run
};

/// Trains `config` (of a run, in any layout) up to a step, in a temporary folder that is removed
/// afterwards, without evaluating or saving: the hashes of the steps and of the last one's
/// parameters, on every rank. Collective. ValueError for a step that the checkpoint has passed, and
/// for a configuration without training_config.exact.
accuracy::StepRerun rerun_steps(const AllConfig& config, const RerunOptions& options);

/// The folder of the run whose config.yaml this is. ValueError for a file of another name.
std::string run_of_config(const std::string& config_file);

/// What turns the paths of a run's config.yaml that lie in the run into those where it lies now.
std::vector<std::string> overrides_of_place(const std::string& run_folder);

/// The last checkpoint of a run's folder before a step; empty if there is none.
std::string checkpoint_before(const std::string& run_folder, int64_t step);

/// The step of a checkpoint's folder. IoError for a folder that is none.
int64_t step_of_checkpoint(const std::string& checkpoint);

struct TraceRequest {
  std::string folder;      ///< of the run, with its config.yaml
  int64_t step = 1;        ///< whose things are traced
  int64_t batch_size = 0;  ///< sequences of a micro-batch; 0: those of the run
  PretrainOptions training = {};
};

/// Runs a step of a run again in one process, whatever layout the run had, from its own last
/// checkpoint before that step or from its start, and traces all that it computes (op_trace.h).
/// `load` reads the run's config.yaml with further overrides. ValueError, IoError.
accuracy::StepRerun trace_step(const TraceRequest& request, const ConfigLoader& load);

}  // namespace tapestry

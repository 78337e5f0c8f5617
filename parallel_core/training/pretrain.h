// A whole run, from a configuration to trained weights.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel_core/comm/process_group.h"
#include "parallel_core/config/config.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/data/own_run_data.h"
#include "parallel_core/training/data/run_data.h"
#include "parallel_core/training/ranks/initialize_ranks.h"
#include "parallel_core/training/run_task.h"
#include "parallel_core/training/step/evaluation_metric.h"
#include "parallel_core/training/step/run_part.h"
#include "parallel_core/training/training.h"

namespace tapestry {

struct PretrainOptions {
  ModelProvider model;               ///< empty: the GPT of the configuration
  ParamGroupsProvider param_groups;  ///< empty: with and without weight decay, by flags
  DataProvider data;                 ///< empty: the data of dataset_config
  /// Computed at every evaluation beside the loss; eval_metric may name one.
  std::vector<EvaluationMetric> metrics = {};
  EvaluationFunction evaluation = {};    ///< in place of the library's; empty: that
  std::string run_cmd;                   ///< recorded in the log and config.yaml
  std::function<bool()> stop_requested;  ///< see TrainOptions; asked of any rank, it stops all
  std::string go_on;                     ///< what a user types to go on with a run that was stopped
  bool overwrite = false;                ///< see OutputFolderOptions
  bool replace = false;                  ///< see OutputFolderOptions
  std::shared_ptr<ProcessGroup> world = single_process_group();
  int ranks_on_host = 1;  ///< that share the memory which this one finds free
  /// This one's number among them; empty: all ranks are on one host.
  std::optional<int> rank_on_host = std::nullopt;
  std::string progress_text;  ///< how collectives move on, for the log
  /// A run that only shows what its first steps compute: ends after so many, evaluates and saves
  /// nothing.
  std::optional<int64_t> rehearsed_steps = std::nullopt;
  /// Whole weights that a new run starts from, the same on every rank, and where they are from;
  /// empty: as configured.
  std::function<LogicalState()> start_weights = {};
  std::string start_weights_name = {};
  /// Further pieces of the loop, made when the run is about to begin.
  std::vector<std::function<std::unique_ptr<StepObserver>(TrainOneStepCell& cell)>> observers = {};
  /// Pieces that want to know of the run before it begins: diagnosis::run_parts(), or one's own.
  std::vector<RunPartFactory> parts = {};
  /// Makes what the run trains for in place of the next token: post_training::run_task, or one's
  /// own; empty, or a null task: nothing else. A configuration with a task that nobody makes is
  /// refused.
  RunTaskFactory task = {};
  bool zero_learning_rate = false;  ///< learning rate and weight decay are 0 in every step
};

/// Does everything that a configuration asks for: groups, logs, data, model, weights, optimizer,
/// training. Every rank of the world calls it. The configuration must be supported
/// (require_supported) and fit into memory (both are checked before anything is allocated or
/// written; what a model of one's own needs is not known before). The output folder is the run's
/// alone (OutputFolder), and that of an earlier run is refused unless it is to be overwritten; then
/// its files are moved aside when everything that this run reads has been read.
TrainSummary pretrain(const AllConfig& config, const PretrainOptions& options = {});

}  // namespace tapestry

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
#include "parallel_core/dump/dump_config.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/run_data.h"
#include "parallel_core/training/training.h"

namespace tapestry {

struct PretrainOptions {
  ModelProvider model;                   ///< empty: the GPT of the configuration
  ParamGroupsProvider param_groups;      ///< empty: with and without weight decay, by flags
  std::string run_cmd;                   ///< recorded in the log and config.yaml
  std::function<bool()> stop_requested;  ///< see TrainOptions; asked of any rank, it stops all
  std::string go_on;                     ///< what a user types to go on with a run that was stopped
  bool overwrite = false;                ///< see OutputFolderOptions
  bool replace = false;                  ///< see OutputFolderOptions
  std::shared_ptr<ProcessGroup> world = single_process_group();
  int ranks_on_host = 1;  ///< that share the memory which this one finds free
  /// This one's number among them; empty: all ranks are on one host.
  std::optional<int> rank_on_host = std::nullopt;
  std::string progress_text;                            ///< how collectives move on, for the log
  std::optional<dump::DumpConfig> dump = std::nullopt;  ///< what is dumped, if anything
  /// A run that only shows what its first steps compute: ends after so many, evaluates and saves
  /// nothing. With `rounding_draw` results of ops are moved by roundings (RoundingNoise) in the
  /// steps that are dumped.
  std::optional<int64_t> rehearsed_steps = std::nullopt;
  std::optional<uint64_t> rounding_draw = std::nullopt;
  /// Whole weights that a new run starts from, the same on every rank, and where they are from;
  /// empty: as configured.
  std::function<LogicalState()> start_weights = {};
  std::string start_weights_name = {};
  /// Further pieces of the loop, made when the run is about to begin; before the dump's.
  std::vector<std::function<std::unique_ptr<StepObserver>(TrainOneStepCell& cell)>> observers = {};
  bool zero_learning_rate = false;  ///< learning rate and weight decay are 0 in every step
};

/// Does everything that a configuration asks for: groups, logs, data, model, weights, optimizer,
/// training. Every rank of the world calls it. The configuration must be supported
/// (require_supported) and fit into memory (both are checked before anything is allocated or
/// written; what a model of one's own needs is not known before). The output folder is the run's
/// alone (OutputFolder), and that of an earlier run is refused unless it is to be overwritten; then
/// its files are moved aside when everything that this run reads has been read.
TrainSummary pretrain(const AllConfig& config, const PretrainOptions& options = {});

/// Numbers of threads and the groups of ranks, unless there are any. ValueError for a configuration
/// that is not supported, or not that of all ranks, or a world of the wrong size.
void initialize_ranks(const AllConfig& config, const std::shared_ptr<ProcessGroup>& world);

/// The axes that a configuration asks for. A virtual pipeline of one chunk is none.
ModelParallelSizes model_parallel_sizes(const ModelParallelConfig& config);

/// ValueError, with the number that is needed, for a job whose ranks the layout does not divide.
void check_world_size(const ModelParallelConfig& config, int world_size);

/// ConfigError, with the place of the key, if the ranks of a pipeline stage are no grid of
/// expert_tensor_parallel_size x expert_model_parallel_size.
void check_expert_ranks(const AllConfig& config, int world_size);

/// "dp 1 | pp 1 | tp 1 | sp False | vpp None"
std::string layout_line(const ModelParallelConfig& config, int64_t data_parallel_size);

}  // namespace tapestry

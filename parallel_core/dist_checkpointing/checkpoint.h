// Weights on disk.
#pragma once

#include <cstdint>
#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/dist_checkpointing/hf_config.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/pipeline_parallel/parallel_model.h"

namespace tapestry {

/// Reads every tensor of a safetensors file, or of a folder with model.safetensors or its index.
/// IoError for files that are not what they should be.
LogicalState read_weights(const std::string& path);

/// Loads the weights at `path` (see read_weights; a folder of checkpoints means its newest) into
/// the model, whichever naming scheme they use: logical, in-memory, or, if the model has them
/// (has_file_names_of_config), that of Hugging Face. ValueError with the full report if they do not
/// fit, or if the folder's config.json is that of another model (check_hf_config).
void load_weights(ParallelModel& model, const TransformerConfig& config, const std::string& path);

/// The newest "step_%08d" folder below a folder; the folder itself if it holds weights. IoError if
/// there is neither.
std::string resolve_checkpoint(const std::string& path);

/// Where checkpoints of a run go, and how many are kept.
struct CheckpointOptions {
  std::string directory;  ///< .../checkpoint
  int64_t keep_max = 5;
  std::string resolved_config;  ///< content of config.yaml
  std::string tokenizer_model;  ///< copied beside the weights; may be empty
  HfSource source;              ///< for config.json and generation_config.json
};

/// Writes directory/step_%08d with model.safetensors, config.json, generation_config.json,
/// config.yaml and the tokenizer.
/// The folder appears under its name when it is complete and on disk. Returns its path. All ranks
/// make the call, rank 0 of the world writes, after it has brought the stages of its pipeline
/// together. With an optimizer its masters are written in place of 16-bit parameters. A model
/// without names of its configuration is written under its logical names, with "model_type":
/// "tapestry". RuntimeError for a weight that is not finite, StorageError for a full disk; either
/// leaves what was there before.
std::string write_checkpoint(const ParallelModel& model,
                             const TransformerConfig& config,
                             int64_t step,
                             const CheckpointOptions& options,
                             const optim::Optimizer* optimizer = nullptr);

/// Removes the oldest checkpoints beyond keep_max, but never `newest`, a path that write_checkpoint
/// gave.
void remove_old_checkpoints(const CheckpointOptions& options, const std::string& newest);

/// Gives a checkpoint, a path that write_checkpoint gave, another name beside it, under which
/// resolve_checkpoint does not find it. What had that name is replaced. IoError.
void set_checkpoint_aside(const std::string& checkpoint, const std::string& name);

/// write_checkpoint, then remove_old_checkpoints.
std::string save_checkpoint(const ParallelModel& model,
                            const TransformerConfig& config,
                            int64_t step,
                            const CheckpointOptions& options,
                            const optim::Optimizer* optimizer = nullptr);

/// Writes tensors under their names to one safetensors file.
void write_state(const std::string& path, const LogicalState& state);

}  // namespace tapestry

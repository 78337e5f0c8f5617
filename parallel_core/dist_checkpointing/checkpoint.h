// Weights on disk.
#pragma once

#include <cstdint>
#include <string>

#include "interop/architectures/hf_folder.h"
#include "parallel_core/config/config.h"
#include "parallel_core/dist_checkpointing/checkpoint_folder.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/pipeline_parallel/parallel_model.h"

namespace tapestry {

/// Reads every tensor of a safetensors or MindSpore (*.ckpt) file, or of a folder with
/// model.safetensors, its index or one .ckpt file.
/// IoError for files that are not what they should be.
LogicalState read_weights(const std::string& path);

/// Loads the weights at `path` (see read_weights; a folder of checkpoints means its newest) into
/// the model, whichever naming scheme they use: logical, in-memory, or, if the model has them
/// (has_file_names_of_config), that of Hugging Face or MindFormers (NameScheme). ValueError with
/// the full report if they do not fit, or if the folder's config.json is that of another model
/// (check_hf_config).
///
/// Where the model has adapters (config.lora), `path` may be the folder of one, a checkpoint or
/// PEFT's: then the base's weights come from config.from_hf or where the adapter's folder says
/// (find_adapter_base), and have to be those that it was trained beside. Beside other weights the
/// adapter is that of config.lora.adapter, or it keeps its start values.
///
/// A model with a score head (config.score_head) also takes the weights of a language model,
/// without the output layer; its head then keeps its start values.
void load_weights(ParallelModel& model, const TransformerConfig& config, const std::string& path);

/// Whether the weights at `path` are those of a language model, on which a model of this
/// configuration puts a new score head. Errors of read_weights.
bool starts_score_head(const TransformerConfig& config, const std::string& path);

/// The same through the optimizer, each rank reading only what it updates: for ranks that hold no
/// whole parameters. Follow it by DistributedDataParallel::parameters_changed. ValueError also for
/// names of modules.
void load_own_weights(const ParallelModel& model,
                      const TransformerConfig& config,
                      const std::string& path,
                      optim::Optimizer& optimizer);

/// Loads an adapter, and what is trained whole beside it, into a model that has one: the folder of
/// PEFT's, or a checkpoint of a run with adapters. ValueError, with the full report, for missing or
/// unexpected tensors, wrong shapes, and an adapter_config.json of another adapter
/// (check_adapter_config); IoError. With an optimizer through that, as load_own_weights.
void load_adapter(ParallelModel& model,
                  const TransformerConfig& config,
                  const std::string& path,
                  optim::Optimizer* optimizer = nullptr);

/// Where checkpoints of a run go, and how many are kept.
struct CheckpointOptions {
  std::string directory;  ///< .../checkpoint
  int64_t keep_max = 5;
  std::string resolved_config;  ///< content of config.yaml
  HfSource source;              ///< config.json, generation_config.json, files of the tokenizer
  /// Of a run with adapters (lora_config.use_lora): content of adapter_config.json, if empty what
  /// the configuration says; and of base_model.json, which says what they belong to, if empty none.
  std::string adapter_config;
  std::string base_model;
  /// JSON object of the trainer's own, saved beside the optimizer's state; empty: weights alone.
  std::string training_state;
  std::string hashes;  ///< content of hashes.json (stored_hashes.h); empty: none
  /// Weights beyond this are divided among several files; parts of a tensor in a .ckpt file do not
  /// get larger.
  uint64_t max_shard_bytes = 5'000'000'000;
  /// Not empty: tensors go to PREFIX.ckpt and PREFIX-training_state.ckpt in place of safetensors
  /// (tensor_files.h), under the names of modules where the model has names of the configuration.
  std::string ckpt_prefix;
  /// What all data-parallel ranks have is divided among them; otherwise the first writes all of it.
  bool remove_redundancy = false;
  /// Weights that are not finite are written as they are, for whoever looks into them.
  bool allow_nonfinite = false;
  /// With an optimizer, its states too; else its masters alone.
  bool with_states = true;
};

/// Writes directory/step_%08d: the weights under the names of file_place.h, config.json,
/// config.yaml, the tokenizer, the optimizer's states and the training state if there are any, and
/// the manifest. Of a model with adapters what is trained alone, as PEFT lays it out
/// (peft_names.h): adapter_model.safetensors, with adapter_config.json and base_model.json in place
/// of config.json. With an optimizer its masters are written in place of 16-bit parameters. The
/// folder appears under its name when it is complete, on disk, and has been read back. Returns its
/// path. All ranks of the world make the call, and each writes what it has; with z3 the optimizer
/// has to be given. RuntimeError for a weight that is not finite (unless that is allowed),
/// StorageError for a full disk, IoError; all of them leave what was there before.
std::string write_checkpoint(const ParallelModel& model,
                             const TransformerConfig& config,
                             int64_t step,
                             const CheckpointOptions& options,
                             const optim::Optimizer* optimizer = nullptr);

/// write_checkpoint, then remove_old_checkpoints.
std::string save_checkpoint(const ParallelModel& model,
                            const TransformerConfig& config,
                            int64_t step,
                            const CheckpointOptions& options,
                            const optim::Optimizer* optimizer = nullptr);

/// Writes tensors under their names to one safetensors file.
void write_state(const std::string& path, const LogicalState& state);

}  // namespace tapestry

// Models from disk, for use without training.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "autograd/ops/transformer/quantized_matrix.h"
#include "parallel_core/comm/process_group.h"
#include "parallel_core/inference/generation_config.h"
#include "parallel_core/lora/quantize_base.h"
#include "parallel_core/training/checkpoints/saved_model.h"
#include "parallel_core/transformer/gpt_model.h"

namespace tapestry {

struct OpenModelOptions {
  /// A checkpoint, a folder of checkpoints or a run's folder (its latest), a Hugging Face model, or
  /// a GGUF file.
  std::string checkpoint;
  std::string adapter;  ///< a PEFT folder, or a checkpoint of a LoRA run; empty: none
  /// float32 | bfloat16 | q8_0 | q4_0 (matrices in blocks of 8 or 4 bits a number; the rest, and
  /// all that is computed, is float32). Empty: what the run that made a checkpoint computed in,
  /// float32 for others, where matrices that a GGUF file has in such blocks stay as they are.
  std::string dtype;
  int64_t tensor_parallel = 1;
  int64_t pipeline_parallel = 1;
  bool checksums = true;  ///< the weights' are verified
};

struct OpenModel {
  std::string folder;             ///< where the weights are
  SavedModel saved;               ///< configuration as opened, tokenizer
  std::vector<int32_t> stop_ids;  ///< that end a text: eos_token_id of generation_config.json, all
                                  ///< of them; without that file saved.eod_id, if there is one
  SuggestedSampling suggested;
  std::vector<std::string> remarks;  ///< for the user: what was found and assumed
  std::unique_ptr<GPTModel> model;
};

/// The calling rank's part of the model of a configuration, for inference: in evaluation mode, with
/// weights that want no gradients, have the dtype that products take, and are still to be filled.
/// `blocks_of`: the format of a matrix that takes part in products alone, or none; empty: none has
/// one.
std::unique_ptr<GPTModel> model_without_weights(const AllConfig& config,
                                                const BlocksOf& blocks_of = {});

/// Opens a model for inference: the calling rank's part of it in a layout of tensor_parallel times
/// pipeline_parallel ranks, whatever layout it was trained in, in evaluation mode. Parameters want
/// no gradients, nothing is initialised, and weights go from the files into their dtype straight,
/// so that memory peaks at their size. Collective over `world`, whose size is that of the layout.
///
/// IoError or ValueError as open_saved_model, configure_adapter and load_weights; ValueError for
/// another dtype, or a world of another size, and for blocks where rows of a matrix are no multiple
/// of 32 numbers.
OpenModel open_model(const OpenModelOptions& options,
                     const std::shared_ptr<ProcessGroup>& world = single_process_group());

/// The same in the groups that the calling ranks have (parallel_state.h), beside a model that
/// trains: tensor_parallel and pipeline_parallel of the options say nothing. Experts and sequences
/// are divided as there. Collective over all ranks of the job.
OpenModel open_model_in_groups(const OpenModelOptions& options);

}  // namespace tapestry

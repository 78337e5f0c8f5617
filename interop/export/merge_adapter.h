// A model and its adapter as one model: the folder of a Hugging Face model whose weights are
// W + s B A.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry {

struct MergeOptions {
  std::string base;     ///< folder of a Hugging Face model, or a checkpoint; empty: as recorded
  std::string adapter;  ///< folder of a PEFT adapter, or the checkpoint of a run with LoRA
  std::string output;   ///< a folder that is not there yet, or empty
  std::optional<DType> dtype;  ///< float32, float16 or bfloat16; empty: each tensor keeps its own
};

struct MergeSummary {
  std::string base;                  ///< folder that the weights came from
  int64_t modules = 0;               ///< whose matrices have changed
  int64_t replaced = 0;              ///< tensors that the adapter holds whole
  int64_t tensors = 0;               ///< written
  uint64_t bytes = 0;                ///< of them
  std::vector<std::string> remarks;  ///< what is worth a line
};

/// Writes base + adapter to `output`: the same files of weights with the same tensors, of which
/// those that no adapter is beside have the bytes of the base; config.json, changed in its dtype
/// and tie_word_embeddings where these change; and every other file of the base's folder that is no
/// weights and not a run's own, as it is.
///
/// A matrix W [out, in] becomes W + s B A, with DoRA m / n (W + s B A), n the lengths of the rows
/// of W + s B A; of a file [in, out] (GPT-2) the transpose. Source: the definitions of PEFT's
/// merge. Computed in float64 and rounded once. Rank and alpha follow rank_pattern, alpha_pattern
/// and use_rslora; tensors of modules_to_save and biases take the place of the base's. Where that
/// gives an output matrix or a table of its own to a model that had one for both, the result has
/// two, and tie_word_embeddings: false.
///
/// Holds pieces of tensors in memory, and what the adapter has of one module.
///
/// ValueError: the adapter has a tensor that target_modules, modules_to_save and bias do not mean,
/// lacks one that they mean, or has one of another shape; the base is not the one that it was
/// trained beside (check_adapter_base); a value is not finite after rounding; and what
/// read_peft_config refuses; an output folder with something in it. IoError: files that are missing
/// or not what they should be. StorageError. The folder appears under its name when it is complete.
MergeSummary merge_adapter(const MergeOptions& options);

/// Copies the adapter in a folder, PEFT's or a checkpoint of a run with adapters, to a folder that
/// PEFT reads: adapter_config.json, adapter_model.safetensors, and the files of a tokenizer and of
/// a chat template beside them, all as they are. The adapter is read through and refused as above.
void export_adapter_folder(const std::string& adapter, const std::string& output);

}  // namespace tapestry

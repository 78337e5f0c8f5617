// The files with tensors in a checkpoint's folder, by their names: those of Hugging Face
// (model.safetensors, or shards and an index) or MindSpore's PREFIX.ckpt, and beside them the
// states of the optimizer, training_state.safetensors or PREFIX-training_state.ckpt.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "autograd/io/tensor_source.h"

namespace tapestry {

/// training_state.safetensors, or shards of it.
inline constexpr const char* kTrainingStateStem = "training_state";
inline constexpr const char* kWeightsStem = "model";
inline constexpr const char* kAdapterStem = "adapter_model";

/// Stems of the two .ckpt files of a prefix (training_config.prefix).
std::string ckpt_weights_stem(const std::string& prefix);
std::string ckpt_states_stem(const std::string& prefix);
/// Whether a file of that name in a checkpoint holds weights, or is their index.
bool is_weights_file(std::string_view name);
/// Whether a folder has such a file.
bool holds_weights(const std::string& folder);

/// Opens the weights in a folder, of safetensors rather than of .ckpt, in one of an adapter those
/// of the adapter; or a file, which is taken for MindSpore's if it is called *.ckpt, and for one of
/// GGUF if it is called *.gguf. IoError: there are none, several .ckpt files, or they are not what
/// they should be; ValueError as GgufWeights.
std::unique_ptr<TensorSource> open_weights(const std::string& path);
/// Opens the states of the optimizer beside them; null if there are none. IoError.
std::unique_ptr<TensorSource> open_states(const std::string& folder);

}  // namespace tapestry

// Names and orientation of weights in files.
//
// A model that Hugging Face can express as Llama, Qwen2 or GPT-2 carries exactly its names there
// (GPT-2: fused c_attn, matrices [in, out]); any other the logical names. Source: the layouts that
// the transformers library writes.
#pragma once

#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/dist_checkpointing/logical_state.h"

namespace tapestry {

/// "llama", "qwen2", "gpt2", or "tapestry" for a model that none of them expresses.
std::string file_model_type(const TransformerConfig& config);

/// The state under the names that files of this model carry.
LogicalState to_file_names(const TransformerConfig& config, const LogicalState& state);

/// The state under logical names, whichever of the naming schemes `tensors` uses: logical names,
/// Llama and Qwen2, or GPT-2 with and without the "transformer." prefix. Mask and frequency buffers
/// that old files hold are dropped, as is an output matrix that repeats tied embeddings.
LogicalState from_file_names(const TransformerConfig& config, const LogicalState& tensors);

}  // namespace tapestry

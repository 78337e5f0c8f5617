// Which of Hugging Face's models a configuration is.
#pragma once

#include <string>

#include "parallel_core/config/config.h"

namespace tapestry {

/// "llama", "qwen2", "mixtral", "qwen2_moe", "gpt2", or "tapestry" for a model that none of them
/// expresses.
std::string file_model_type(const TransformerConfig& config);

}  // namespace tapestry

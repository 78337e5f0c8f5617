// Which of Hugging Face's models a configuration is, and its config.json.
#pragma once

#include <string>

#include "parallel_core/config/config.h"

namespace tapestry {

/// "llama", "qwen2", "gpt2", or "tapestry" for a model that none of them expresses.
std::string file_model_type(const TransformerConfig& config);

/// Content of config.json beside the weights of a model of this type.
std::string model_config_json(const TransformerConfig& config, const std::string& type);
inline std::string model_config_json(const TransformerConfig& config) {
  return model_config_json(config, file_model_type(config));
}

}  // namespace tapestry

// Which of Hugging Face's models a configuration is.
#pragma once

#include <string>

#include "parallel_core/config/config.h"

namespace tapestry {

/// The model_type of the family whose model this is, or "tapestry" for one that none has.
std::string file_model_type(const TransformerConfig& config);

}  // namespace tapestry

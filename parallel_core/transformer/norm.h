// The normalisations that a configuration can name.
#pragma once

#include <memory>
#include <string>

#include "nn/module.h"
#include "parallel_core/config/config.h"

namespace tapestry {

/// A norm over the last axis of `size` elements, by config.normalization: "LayerNorm" (in-memory
/// parameters gamma and beta) or "RMSNorm", "FusedRMSNorm" (weight). Statistics and parameters are
/// float32. `logical_name` is the name without ".weight"; `scale` is the initial gain. ValueError
/// for another name.
std::unique_ptr<nn::UnaryModule> get_norm(const TransformerConfig& config,
                                          int64_t size,
                                          const std::string& logical_name,
                                          double scale = 1.0);

}  // namespace tapestry

// The normalisations that a configuration can name.
#pragma once

#include <memory>
#include <string>

#include "nn/module.h"
#include "parallel_core/config/config.h"
#include "parallel_core/transformer/precision.h"

namespace tapestry {

/// A norm over the last axis of `size` elements, by config.normalization: "LayerNorm" (in-memory
/// parameters gamma and beta) or "RMSNorm", "FusedRMSNorm" (weight). Statistics and parameters are
/// float32. `logical_name` is the name without ".weight"; `scale` is the initial gain. ValueError
/// for another name.
std::unique_ptr<nn::UnaryModule> get_norm(const TransformerConfig& config,
                                          int64_t size,
                                          const std::string& logical_name,
                                          double scale = 1.0);

/// The norm of x in the activations' dtype. x is first rounded to precision.norm if that is
/// narrower.
Tensor apply_norm(nn::UnaryModule& norm, const Tensor& x, const Precision& precision);

}  // namespace tapestry

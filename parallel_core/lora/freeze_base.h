// What a run with adapters does not train.
#pragma once

#include "nn/module.h"
#include "parallel_core/config/config.h"

namespace tapestry {

/// With use_lora, all parameters but those of adapters and what modules_to_save names stop wanting
/// gradients: requires_grad() is false for them, and they get no gradient, no place in a bucket, no
/// master and no moments. Nothing without.
void freeze_base(nn::Module& model, const TransformerConfig& config);

/// Magnitudes of adapters (DoRA) become the lengths of the rows of their matrices: once the base
/// has its weights, for an adapter that nobody has trained.
void start_magnitudes(nn::Module& model);

}  // namespace tapestry

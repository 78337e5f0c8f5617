// How many keys a query looks at.
#pragma once

#include "parallel_core/config/config.h"

namespace tapestry {

/// Mean over tokens: half of the sequence, or at most the window of the layer; 0 for a layer
/// without attention.
double mean_context(const TransformerConfig& model, int64_t layer);

}  // namespace tapestry

// How many keys a query looks at.
#pragma once

#include "parallel_core/config/config.h"

namespace tapestry {

/// Mean over tokens and layers: half of the sequence, or at most the window.
double mean_context(const TransformerConfig& model);

}  // namespace tapestry

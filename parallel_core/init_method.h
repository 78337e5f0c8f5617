// Start values by configuration.
#pragma once

#include "parallel_core/config/config.h"
#include "parallel_core/parameter_builder.h"

namespace tapestry {

/// What init_method says, by default normal with standard deviation init_method_std, for every
/// weight and embedding. ValueError for an unknown name.
InitMethod weight_init(const TransformerConfig& config);
/// The same for the projections that end in the residual stream; with scaled_output_init divided by
/// sqrt(2 num_layers) (Radford et al. 2019).
InitMethod output_weight_init(const TransformerConfig& config);
/// What bias_init says, by default zeros.
InitMethod bias_init(const TransformerConfig& config);

}  // namespace tapestry

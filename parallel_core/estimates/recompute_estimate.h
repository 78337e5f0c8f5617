// What recomputation spares and costs, from sizes.
#pragma once

#include <string>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/transformer/recompute_policy.h"

namespace tapestry {

/// One layer and one micro-batch on one rank.
struct LayerCost {
  double kept = 0;       ///< bytes between the forward and the backward pass
  double transient = 0;  ///< bytes beside these while the layer runs forward or backward
  double flops = 0;      ///< of matrix products that are computed again
};

/// With `policy`; one that is default-made is the usual: the MLP's activation is recomputed where
/// it is one kernel that keeps its input alone, and what sequence parallelism gathers is gathered
/// again. Kernels are fused; composed ones keep more.
/// A rank gets `load` times the rows of a mixture of experts that it has where all experts have as
/// many. `layer` counts from 0.
LayerCost layer_cost(const AllConfig& config,
                     const RecomputePolicy& policy,
                     int64_t layer,
                     double load = 1);

/// Of every layer of the model, as model_config.layer_recompute says; empty if that is.
std::vector<LayerCost> layer_costs(const AllConfig& config, double load = 1);

/// FLOPs of a layer's matrix products, forward, for one micro-batch on one rank.
double layer_flops(const AllConfig& config, int64_t layer);

/// Lines that say how many bytes each layer keeps less and how many FLOPs that costs; empty without
/// recomputation.
std::string recompute_cost_text(const AllConfig& config);

}  // namespace tapestry

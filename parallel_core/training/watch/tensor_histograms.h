// Histograms of weights and gradients, over all ranks that share them.
#pragma once

#include <map>
#include <string>

#include "nn/module.h"
#include "parallel_core/tensorboard/histogram.h"

namespace tapestry {

enum class HistogramOf : uint8_t { kWeights, kGradients };

/// Of each logical tensor of all stages, whole, on the first stage; on the others an empty map. The
/// ranks of a tensor-parallel group and of a pipeline make the call. A gradient that is not there
/// counts as zeros. 16-bit weights are counted as they are, not their masters.
std::map<std::string, report::Histogram> logical_histograms(const nn::Module& model,
                                                            HistogramOf what);

}  // namespace tapestry

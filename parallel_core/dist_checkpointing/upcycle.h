// Mixtures of experts that begin as a dense model.
#pragma once

#include <string>

#include "optim/optimizer.h"
#include "parallel_core/config/config.h"
#include "parallel_core/pipeline_parallel/parallel_model.h"

namespace tapestry {

/// Loads the weights of a dense model (paths and naming schemes as load_weights) into one whose
/// layers are mixtures, in part or all: each expert becomes a copy of the MLP of its layer, and
/// everything outside of the MLPs is taken over. Routers and their gates keep their start values; a
/// shared expert does, too, but for w_down, which is zero, so that it adds nothing yet. With gates
/// that sum to 1 the model then computes what the dense one does. Source: Komatsuzaki et al. 2022,
/// arXiv:2212.05055.
///
/// With an optimizer, which holds what this rank updates, through that, as load_own_weights.
/// ValueError with the full report if the dense weights do not fit; experts must be as wide as the
/// MLPs were.
void load_upcycled(ParallelModel& model,
                   const TransformerConfig& config,
                   const std::string& path,
                   optim::Optimizer* optimizer = nullptr);

}  // namespace tapestry

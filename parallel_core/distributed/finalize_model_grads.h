// What has to happen to gradients between the last backward pass of a step and their use.
#pragma once

#include "nn/module.h"

namespace tapestry {

/// Sums the gradients of tied embeddings over the stages that have a copy (flags has_copy and
/// shared), so that all copies get the same update. A parameter without a gradient counts as zeros.
void sum_tied_embedding_gradients(const nn::Module& model);

}  // namespace tapestry

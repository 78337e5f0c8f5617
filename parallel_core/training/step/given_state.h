// Weights and gradients that come from elsewhere, put in the place of a run's own.
#pragma once

#include <string>

#include "nn/module.h"
#include "optim/optimizer.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/distributed/model_gradients.h"

namespace tapestry {

/// Writes whole tensors, the same on every rank, into what this rank updates: pieces, masters and
/// parameters, in every layout; DistributedDataParallel::parameters_changed() follows. Buffers that
/// `state` lacks stay as they are. ValueError with the whole report, and nothing changed, unless
/// names and shapes are the model's; `source` names the origin in the message. Collective.
void set_weights(const nn::Module& model,
                 optim::Optimizer& optimizer,
                 const LogicalState& state,
                 const std::string& source);

/// Writes whole tensors, the same on every rank, into what this rank holds of the gradients when
/// they are reduced (ModelGradients::held_gradient), converting dtypes. Errors as set_weights.
void set_gradients(const nn::Module& model,
                   ModelGradients& gradients,
                   const LogicalState& state,
                   const std::string& source);

}  // namespace tapestry

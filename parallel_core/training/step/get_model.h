// From a configuration, and code of one's own, to a model that trains.
#pragma once

#include <functional>
#include <memory>

#include "parallel_core/config/config.h"
#include "parallel_core/pipeline_parallel/parallel_model.h"
#include "parallel_core/transformer/gpt_model.h"

namespace tapestry {

/// The GPT of a configuration, its weights initialised from training_config.seed. In a pipeline the
/// chunks that the calling rank holds (GPTModel::stage), which have the weights that they would
/// have in the whole model. `loss` takes the place of the cross entropy.
std::unique_ptr<GPTModel> get_model(const AllConfig& config, TokenLoss loss = {});

/// Makes the calling rank's part of a model.
using ModelProvider = std::function<std::unique_ptr<ParallelModel>(const AllConfig&)>;

/// A model of one's own, made by `provider` after seeding initialisers by name and the default
/// generator, from training_config.seed. Collective.
///
/// A parameter that was made without logical tensors, as those of plain nn layers are, is one whole
/// logical tensor under its path, equal on all tensor-parallel ranks with equal gradients; so the
/// layers that use it must see the same values on each of them.
///
/// ValueError, naming the parameter: with sequence parallelism, for one without logical tensors,
/// whose gradients may be whole or a share; for two tensors of one name, on this or another stage
/// (flags shared and has_copy aside); if what is not sharded has other bits on another
/// tensor-parallel rank. Also if provider gives nothing.
std::unique_ptr<ParallelModel> get_model(const ModelProvider& provider, const AllConfig& config);

}  // namespace tapestry

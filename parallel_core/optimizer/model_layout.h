// How a model's parameters lie on the ranks, as optimizers ask for it that look at whole matrices.
#pragma once

#include <memory>

#include "nn/module.h"
#include "optim/parameter_layout.h"
#include "parallel_core/distributed/distributed_data_parallel.h"

namespace tapestry {

/// Of the model's parameters on the current rank, over its tensor-parallel group and that of
/// `data_parallel`, which may be null; of experts over the expert-tensor-parallel group and that of
/// its experts. The groups outlive the object.
std::shared_ptr<const optim::ParameterLayout> model_layout(
    const nn::Module& model, const DistributedDataParallel* data_parallel);

}  // namespace tapestry

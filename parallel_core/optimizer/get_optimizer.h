// From a configuration to an optimizer and its schedule.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "nn/module.h"
#include "optim/grad_scaler.h"
#include "optim/lr_scheduler.h"
#include "optim/optimizer.h"
#include "parallel_core/config/config.h"
#include "parallel_core/distributed/distributed_data_parallel.h"
#include "parallel_core/optimizer/optimizer_param_scheduler.h"
#include "parallel_core/optimizer/param_groups.h"

namespace tapestry {

/// The optimizer that optimizer_type names: AdamW, Adam, SGD, Lion, Came, Adafactor, Muon or one
/// that the program has registered. ValueError for another name. The groups are configured_groups.
///
/// The model's float32 parameters become 16-bit ones if params_dtype says so, with float32 masters
/// in the optimizer that have the values of before. With store_param_remainders those that serve
/// matrix products alone (their flag `matmul`) become bfloat16 ones in any case, with the rest of
/// their bits in place of a master.
///
/// With `data_parallel` that shards the optimizer, it works on this rank's pieces of the
/// parameters (DistributedOptimizer of the original); the group of each piece is that of its
/// parameter. A step is then followed by DistributedDataParallel::parameters_changed.
std::unique_ptr<optim::Optimizer> get_optimizer(
    const AllConfig& config,
    const nn::Module& model,
    const DistributedDataParallel* data_parallel = nullptr);

/// The same with groups of one's own, of the model's whole parameters (which say for Muon what
/// takes AdamW): every one in exactly one group, the same number of groups on every stage of a
/// pipeline, empty ones where a stage has nothing for them. See completed_groups.
std::unique_ptr<optim::Optimizer> get_optimizer(
    const AllConfig& config,
    const nn::Module& model,
    std::vector<optim::ParamGroup> groups,
    const DistributedDataParallel* data_parallel = nullptr);

/// learning_rate_scheduler_kwargs, a registered lr_decay_style or those of the library, whichever
/// is configured.
std::unique_ptr<optim::Schedule> get_optimizer_param_scheduler(const AllConfig& config,
                                                               int64_t data_parallel_size);

/// What these schedules are made with; empty where the configuration asks for another one.
std::optional<optim::LearningRateSchedulerOptions> learning_rate_scheduler_options(
    const AllConfig& config);
std::optional<OptimizerParamSchedulerOptions> param_scheduler_options(const AllConfig& config,
                                                                      int64_t data_parallel_size);

/// Static loss_scale, else dynamic for float16 compute, else 1.
optim::GradScaler get_grad_scaler(const AllConfig& config);

}  // namespace tapestry

// Which parameters of a model are updated with the same settings.
#pragma once

#include <functional>
#include <vector>

#include "nn/module.h"
#include "optim/param_groups.h"
#include "parallel_core/config/config.h"
#include "parallel_core/distributed/distributed_data_parallel.h"

namespace tapestry {

/// True if an optimizer has this rank's pieces of parameters in place of these.
bool updates_pieces(const DistributedDataParallel* data_parallel);

/// Parameters with and without weight decay, by their decay flags; an empty group is left out
/// unless other stages of a pipeline may have it. The names in the optimizer's state are the module
/// paths. With `data_parallel` that shards the optimizer, the parameters are this rank's pieces.
std::vector<optim::ParamGroup> get_param_groups(
    const nn::Module& model,
    double weight_decay,
    const DistributedDataParallel* data_parallel = nullptr);

/// The groups that a configuration asks for: with weight_decay_include or weight_decay_exclude
/// those of decay_choices, else those of the decay flags. Of Muon each is split: weights of matrix
/// products (their flag `matmul`) but the head are its own, or with adamw_include all matrices that
/// no rule matches (adamw_choices); the rest takes AdamW, with adamw_learning_rate. ValueError for
/// rules that would part what makes one parameter.
std::vector<optim::ParamGroup> configured_groups(const AllConfig& config,
                                                 const nn::Module& model,
                                                 const DistributedDataParallel* data_parallel);

/// Groups of one's own with names, and with this rank's pieces where it updates these. What the
/// schedule gives is scaled by lr_mult and wd_mult; a group whose weight_decay is given as 0 has
/// none. ValueError for a group with an lr of its own, or a weight_decay other than 0 or the
/// configuration's, which the schedule would overwrite; for lists of names in the configuration,
/// which would have no effect; and, naming them, for parameters in no or two groups and tensors
/// that are no parameters of the model.
std::vector<optim::ParamGroup> completed_groups(const AllConfig& config,
                                                const nn::Module& model,
                                                std::vector<optim::ParamGroup> groups,
                                                const DistributedDataParallel* data_parallel);

/// Groups of a model's parameters.
using ParamGroupsProvider = std::function<std::vector<optim::ParamGroup>(const nn::Module& model)>;

}  // namespace tapestry

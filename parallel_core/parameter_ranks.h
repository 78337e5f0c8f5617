// Which ranks share a parameter: those of the dense part of a model are divided over (tp, cp, dp),
// those of experts (nn::ParameterFlags::expert) over (etp, ep, edp). All functions are also there
// before initialize_model_parallel, and then give a group of one.
#pragma once

#include "nn/module.h"
#include "parallel_core/comm/process_group.h"

namespace tapestry {

/// True if some parameter belongs to an expert. The same on every rank of a stage.
bool has_experts(const nn::Module& model);

/// Ranks that hold slices of the same logical tensors, or equal copies of what is not sliced: tp,
/// or etp. What nn::TensorParallel says of a parameter is said of these.
ProcessGroup& slices_group(bool of_expert);

/// Ranks with the same slices of the same tensors, over which gradients are summed: dp with cp, or
/// edp.
ProcessGroup& copies_group(bool of_expert);

/// Ranks that hold other experts of the same layers: ep.
ProcessGroup& experts_group();

/// The ranks of a stage that hold one copy of its experts: etp and ep.
ProcessGroup& whole_experts_group();

}  // namespace tapestry

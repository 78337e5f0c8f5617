// The ranks of a run: how many a layout needs, and the groups that they form.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "parallel_core/comm/process_group.h"
#include "parallel_core/config/config.h"
#include "parallel_core/parallel_state.h"

namespace tapestry {

/// Numbers of threads and the groups of ranks, unless there are any. ValueError for a configuration
/// that is not supported, or not that of all ranks, or a world of the wrong size.
void initialize_ranks(const AllConfig& config, const std::shared_ptr<ProcessGroup>& world);

/// The axes that a configuration asks for. A virtual pipeline of one chunk is none.
ModelParallelSizes model_parallel_sizes(const ModelParallelConfig& config);

/// ValueError, with the number that is needed, for a job whose ranks the layout does not divide.
void check_world_size(const ModelParallelConfig& config, int world_size);

/// ConfigError, with the place of the key, if the ranks of a pipeline stage are no grid of
/// expert_tensor_parallel_size x expert_model_parallel_size.
void check_expert_ranks(const AllConfig& config, int world_size);

/// "dp 1 | pp 1 | tp 1 | sp False | vpp None"
std::string layout_line(const ModelParallelConfig& config, int64_t data_parallel_size);

}  // namespace tapestry

// Which part of the model and of the data the calling rank has.
//
// The state belongs to the current RankContext; the functions below forward to it, so that ranks
// may be processes or threads.
#pragma once

#include <memory>
#include <optional>

#include "parallel_core/comm/process_group.h"

namespace tapestry {

/// Sizes of the axes along which a job is split; the data-parallel size is what is left of the
/// world.
struct ModelParallelSizes {
  int tensor_model_parallel_size = 1;
  int pipeline_model_parallel_size = 1;
  std::optional<int> virtual_pipeline_model_parallel_size;
  int context_parallel_size = 1;
  int expert_model_parallel_size = 1;
};

/// Splits the world into groups for the current rank. RuntimeError if it was split already, if a
/// size is below 1, if the sizes do not divide the world, or if that has more than one rank.
void initialize_model_parallel(const ModelParallelSizes& sizes = {},
                               std::shared_ptr<ProcessGroup> world = single_process_group());
bool model_parallel_is_initialized();
/// Forgets all groups of the current rank.
void destroy_model_parallel();

// Groups. RuntimeError before initialize_model_parallel.
ProcessGroup& get_tensor_model_parallel_group();
ProcessGroup& get_pipeline_model_parallel_group();
ProcessGroup& get_context_parallel_group();
ProcessGroup& get_data_parallel_group();

// Sizes and ranks within them. RuntimeError before initialize_model_parallel.
int get_tensor_model_parallel_world_size();
int get_tensor_model_parallel_rank();
int get_pipeline_model_parallel_world_size();
int get_pipeline_model_parallel_rank();
int get_context_parallel_world_size();
int get_context_parallel_rank();
int get_data_parallel_world_size();
int get_data_parallel_rank();
bool is_pipeline_first_stage();
bool is_pipeline_last_stage();

}  // namespace tapestry

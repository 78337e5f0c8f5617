// Which part of the model and of the data the calling rank has.
//
// The state belongs to the current RankContext; the functions below forward to it, so that ranks
// may be processes or threads.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel_core/comm/process_group.h"

namespace tapestry {

/// Sizes of the axes along which a job is split; the data-parallel size is what is left of the
/// world.
struct ModelParallelSizes {
  int tensor_model_parallel_size = 1;
  int pipeline_model_parallel_size = 1;
  std::optional<int> virtual_pipeline_model_parallel_size;
  int context_parallel_size = 1;
  /// Ranks over which the experts of a mixture are spread.
  int expert_model_parallel_size = 1;
  /// Ranks that share each of its matrices; left out: tensor_model_parallel_size.
  std::optional<int> expert_tensor_parallel_size;
  /// Axes from the fastest varying to the slowest. "ep" stands beside "dp"; an axis of size one may
  /// be left out.
  std::string order = "tp-cp-ep-dp-pp";
};

/// Splits the world into groups for the current rank. Every rank of the world calls it with the
/// same sizes; making the groups takes no communication.
///
/// The ranks of a pipeline stage are split twice: for the dense part of the model into (tp, cp,
/// dp), and for the experts into (etp, ep, edp). Both are grids over the same ranks in ascending
/// order, with the axes in the order of `order`, where etp stands for tp, edp for dp, and cp is
/// left out: with the default one i = e_t + etp (e_p + ep e_d) for the stage's i-th rank (Liu et
/// al. 2025, arXiv:2504.14960, "parallel folding"). Where etp = tp and cp = 1, ep divides the
/// data-parallel ranks.
///
/// RuntimeError if it was split already; if a size is below 1; if tp x pp x cp do not divide the
/// world, or etp x ep a stage's ranks; for a virtual pipeline without a pipeline; for an order that
/// is empty, repeats an axis, has an unknown one, lacks one of more than one rank, or has "ep" away
/// from "dp".
void initialize_model_parallel(const ModelParallelSizes& sizes = {},
                               std::shared_ptr<ProcessGroup> world = single_process_group());
bool model_parallel_is_initialized();
/// Forgets all groups of the current rank.
void destroy_model_parallel();

// Everything below: RuntimeError before initialize_model_parallel.

// Groups of the calling rank. Their names are those of their axes and ranks, "dp-0-2-4-6";
// of more than eight ranks "dp-0-2-..-126".
ProcessGroup& get_world_group();
ProcessGroup& get_tensor_model_parallel_group();
ProcessGroup& get_pipeline_model_parallel_group();
ProcessGroup& get_context_parallel_group();
/// Ranks with the same part of the model; with context parallel, those that also have other parts
/// of the sequences: gradients are summed over these.
ProcessGroup& get_data_parallel_group(bool with_context_parallel = false);
/// Ranks that hold different experts: rank e / (E / ep) of it has expert e of E.
ProcessGroup& get_expert_model_parallel_group();
/// Ranks that hold slices of the same experts; "etp-...".
ProcessGroup& get_expert_tensor_parallel_group();
/// The ranks that hold one copy of the model: tp-pp, or of the experts, etp-ep-pp.
ProcessGroup& get_model_parallel_group(bool with_expert_parallel = false);
ProcessGroup& get_tensor_and_data_parallel_group(bool with_context_parallel = false);
ProcessGroup& get_tensor_and_context_parallel_group();
/// The ranks of a stage that hold one copy of its experts: etp-ep.
ProcessGroup& get_tensor_and_expert_parallel_group();
/// Ranks with the same slices of the same experts (edp): gradients of these are summed over it.
ProcessGroup& get_data_modulo_expert_parallel_group();
/// The first and the last stage of the pipeline, which share tied embeddings. RuntimeError on a
/// rank in between.
ProcessGroup& get_embedding_group();
/// The first stage alone. RuntimeError on any other.
ProcessGroup& get_position_embedding_group();

int get_tensor_model_parallel_world_size();
int get_tensor_model_parallel_rank();
int get_pipeline_model_parallel_world_size();
int get_pipeline_model_parallel_rank();
int get_context_parallel_world_size();
int get_context_parallel_rank();
int get_data_parallel_world_size(bool with_context_parallel = false);
int get_data_parallel_rank(bool with_context_parallel = false);
int get_expert_model_parallel_world_size();
int get_expert_model_parallel_rank();
int get_expert_tensor_parallel_world_size();
int get_expert_tensor_parallel_rank();
int get_tensor_and_expert_parallel_world_size();
int get_tensor_and_context_parallel_world_size();
int get_data_modulo_expert_parallel_world_size();
int get_data_modulo_expert_parallel_rank();

/// Stages on each rank in the interleaved schedule, if it is used.
std::optional<int> get_virtual_pipeline_model_parallel_world_size();
/// The one that is being built or run, if there are several.
std::optional<int> get_virtual_pipeline_model_parallel_rank();
/// RuntimeError without a virtual pipeline or out of range.
void set_virtual_pipeline_model_parallel_rank(int rank);

/// On the first rank of the pipeline and, unless ignored, its virtual rank 0.
bool is_pipeline_first_stage(bool ignore_virtual = false);
/// On the last rank and, unless ignored, its last virtual rank.
bool is_pipeline_last_stage(bool ignore_virtual = false);
/// The calling stage holds the embedding or the output layer.
bool is_rank_in_embedding_group(bool ignore_virtual = false);

// Ranks in the world. The neighbours wrap around.
int get_pipeline_model_parallel_first_rank();
int get_pipeline_model_parallel_last_rank();
int get_pipeline_model_parallel_prev_rank();
int get_pipeline_model_parallel_next_rank();
std::vector<int> get_cp_global_ranks();

}  // namespace tapestry

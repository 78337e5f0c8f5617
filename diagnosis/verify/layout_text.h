// A parallel layout in one line of text, as "tp=2,sp,pp=2".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"

namespace tapestry {

/// What a layout says about a configuration.
struct LayoutText {
  std::vector<std::string> overrides;  ///< "section.key=value", for LoadOptions::overrides
  int64_t data_parallel_size = 1;      ///< which no key of a configuration has
};

/// Reads entries that are separated by commas; keys that none of them names stay as configured:
///
/// | entry            | key |
/// |------------------|-----|
/// | tp=N pp=N cp=N   | tensor_, pipeline_model_parallel_size, context_parallel_size |
/// | dp=N             | data-parallel ranks |
/// | ep=N etp=N       | expert_model_parallel_size, expert_tensor_parallel_size |
/// | vpp=N            | virtual_pipeline_model_parallel_size |
/// | sp               | sequence_parallel |
/// | layers=9,3       | num_layer_list; rows of virtual stages are separated by '/' |
/// | offset=0,1,-1    | offset, likewise |
/// | embedding_stage  | standalone_embedding_stage |
/// | micro=N          | micro_batch_num: micro-batches of each data-parallel rank |
/// | dist_opt         | use_distributed_optimizer |
/// | zero=z1, z2, z3  | zero_level |
/// | bucket=N         | bucket_size |
/// | overlap          | overlap_grad_reduce, and overlap_param_gather with a sharded optimizer |
/// | delay            | delay_grad_reduce |
///
/// Words without a number may also be given as sp=True or sp=False. ValueError, naming the entry,
/// for an unknown or repeated name, or a value that is not what it should be. Whether the parts fit
/// together is left to the configuration.
LayoutText parse_layout(const std::string& text);

/// What turns the configuration of a layout into that of one process which trains on the same
/// micro-batches, those of all `data_parallel_size` ranks.
std::vector<std::string> single_process_overrides(const AllConfig& layout,
                                                  int64_t data_parallel_size);

/// "tp=2,sp,pp=2": the layout that a configuration asks for, as parse_layout reads it.
std::string layout_text(const AllConfig& config, int64_t data_parallel_size);

/// Ranks of a layout.
int64_t world_size(const ModelParallelConfig& config, int64_t data_parallel_size);

}  // namespace tapestry

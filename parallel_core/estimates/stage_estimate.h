// The memory of one stage of a pipeline.
#pragma once

#include "parallel_core/estimates/memory_estimate.h"
#include "parallel_core/pipeline_parallel/pipeline_stage.h"

namespace tapestry {

/// Of a rank of the stage whose experts get `load` times the rows that they have where all experts
/// have as many; `unbalanced` is left out.
MemoryEstimate estimate_stage(const AllConfig& config,
                              const PipelineStage& stage,
                              int64_t data_parallel_size,
                              double load);

}  // namespace tapestry

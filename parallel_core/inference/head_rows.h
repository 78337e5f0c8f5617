// Micro-batches through a model up to its head.
#pragma once

#include <vector>

#include "parallel_core/data/data_source.h"
#include "parallel_core/pipeline_parallel/parallel_model.h"

namespace tapestry {

/// What stands before the head of the tokens that count (Batch::loss_mask) in each micro-batch, on
/// the last stage of a pipeline; nothing in it on the others. Without recording, in evaluation mode
/// and afterwards in the mode that the model was in. Collective over the ranks that share it, which
/// all have as many micro-batches of the same shapes.
std::vector<HeadRows> head_rows(ParallelModel& model,
                                const std::vector<data::Batch>& micro_batches);

}  // namespace tapestry

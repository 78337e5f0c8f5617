// What a model tells of the tokens of completions, row by row.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/data/data_source.h"
#include "parallel_core/pipeline_parallel/parallel_model.h"

namespace tapestry::post_training {

/// Where the scores of a completion's tokens lie: `count` of them, from element `first` of a [B, S]
/// tensor on.
struct CompletionPlace {
  int64_t number = 0;  ///< data::RowSequence::number
  int64_t first = 0;
  int64_t count = 0;
};

/// Of the batch's sequences, row by row. The score of a token stands at the position before it, so
/// a completion without a prompt has none of its first token.
std::vector<CompletionPlace> completion_places(const data::Batch& batch);

/// The values at a place of a float32 [B, S] tensor, in double precision.
std::vector<double> values_at(const Tensor& scores, const CompletionPlace& place);

/// Passes over the micro-batches without gradients and in evaluation mode, which is undone:
/// `visit` is called on the last stage for each of them, in their order. Collective over the
/// pipeline. `request.gradients` is off, whatever it says.
void score_without_gradients(
    ParallelModel& model,
    const std::vector<data::Batch>& micro_batches,
    TokenScoresRequest request,
    const std::function<void(int64_t micro_batch, const TokenScores& scores)>& visit);

}  // namespace tapestry::post_training

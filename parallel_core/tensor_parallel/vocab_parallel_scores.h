// Scores of single tokens by a head whose vocabulary is split over ranks.
#pragma once

#include "autograd/ops/heads/token_scores.h"
#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"

namespace tapestry {

/// linear_token_scores() of the whole vocabulary, where each rank has its rows of the weight
/// (vocabulary_shard), whose padding does not count, and the same labels, of whole sequences:
/// hidden is replicated, or with sequence parallelism the rank's piece of the sequence. The scores
/// are the same on every rank.
///
/// The ranks exchange a few numbers per token, never logits. Backward sums the gradient of hidden
/// over the ranks (and scatters it along the sequence). Errors as in linear_token_scores();
/// ValueError for a weight of another number of rows.
RowTokenScores vocab_parallel_token_scores(const Tensor& hidden,
                                           const Tensor& weight,
                                           const Tensor& labels,
                                           const LinearTokenScoresOptions& options,
                                           int64_t vocabulary,
                                           const TensorParallelLayout& layout);

}  // namespace tapestry

// The likeliest tokens of many positions with their log-probabilities.
#pragma once

#include <cstdint>

#include "parallel_core/pipeline_parallel/token_scores.h"
#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"

namespace tapestry {

struct TopLogProbsOptions {
  int64_t k = 1;           ///< in [1, vocabulary]
  double temperature = 1;  ///< logits are divided by it
  int64_t vocabulary = 0;
  int64_t chunk_rows = 256;  ///< rows of logits that exist at a time
};

struct ScoredTop {
  TopLogProbs top;   ///< likeliest first, equal ones by their numbers
  Tensor log_probs;  ///< float32 [count], of the labels
};

/// Of rows before the head, where each rank of a tensor-parallel group has its columns
/// (vocabulary_shard): the same on every rank. labels int64 [count], in the whole vocabulary. Ranks
/// exchange their own k likeliest. ValueError for a k outside of its range, or logits that are NaN
/// or +infinity.
ScoredTop top_log_probs(const HeadRows& rows,
                        const Tensor& labels,
                        const TopLogProbsOptions& options,
                        const TensorParallelLayout& layout);

}  // namespace tapestry

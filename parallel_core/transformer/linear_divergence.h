// Divergence of a head's distributions from a teacher's, a chunk of logits at a time.
#pragma once

#include <cstdint>

#include "parallel_core/pipeline_parallel/token_scores.h"
#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"

namespace tapestry {

struct LinearDivergenceOptions {
  double temperature = 1;  ///< of the divergence alone
  double beta = 0;
  bool add_tail = true;
  int64_t vocabulary = 0;
  int64_t chunk_rows = 512;  ///< rows of logits that exist at a time
  Tensor rounded = {};       ///< the weight in hidden's dtype, where the caller has it
  double logit_scale = 1;    ///< as linear_cross_entropy()
  double logit_cap = 0;
};

/// Each float32 [n] (float64 of float64 hidden), the same on every rank.
struct LinearDivergence {
  Tensor divergence;
  Tensor log_probs;  ///< of the labels, at a temperature of 1; with a gradient, too
  Tensor entropy;    ///< at a temperature of 1, without one
};

/// Of rows hidden [n, H] with this rank's rows of a weight [V, H] (vocabulary_shard; columns of
/// padding do not count), labels int64 [n] in the whole vocabulary, and a target of n rows: a model
/// of the same vocabulary in the same layout, or log-probabilities of the likeliest tokens, from a
/// softmax of the same temperature, of which see top_divergence.h. No gradient goes to the target.
///
/// `hidden` is whole on every rank, behind copy_to_model_parallel_region() or its like, as backward
/// gives each rank's part of its gradient. Ranks exchange a few numbers a row, and one for each
/// likely token. Saves hidden, weight and the same numbers; backward makes the logits of a chunk,
/// and the model's, again. RuntimeError for gradients of gradients; ValueError for other shapes,
/// IndexError for ids outside of the vocabulary.
LinearDivergence linear_divergence(const Tensor& hidden,
                                   const Tensor& weight,
                                   const Tensor& labels,
                                   const DivergenceTarget& target,
                                   const LinearDivergenceOptions& options,
                                   const TensorParallelLayout& layout);

}  // namespace tapestry

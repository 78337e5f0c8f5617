// Sequences through a model without gradients.
#pragma once

#include <cstdint>
#include <span>

#include "parallel_core/pipeline_parallel/parallel_model.h"
#include "parallel_core/post_training/reference/log_prob_table.h"
#include "parallel_core/post_training/rows/pack_sequences.h"

namespace tapestry::post_training {

struct ScoringOptions {
  RowRoom room;
  int64_t rows = 1;  ///< of a micro-batch, about
  double temperature = 1;
  bool overlap_p2p = true;
};

/// Writes into `table` what the model, in evaluation mode and afterwards in the mode that it was
/// in, gives the scored tokens of these sequences. All ranks of a tensor-, context- or
/// pipeline-parallel group have the same numbers and get the same values; data-parallel ranks have
/// numbers of their own, and make as many passes as the one with the most. Sequences without scored
/// tokens are passed over. Collective.
void score_sequences(ParallelModel& model,
                     const SequenceSet& set,
                     std::span<const int64_t> numbers,
                     const ScoringOptions& options,
                     LogProbTable& table);

/// The same of all ranks' numbers together: each data-parallel rank scores a share, then all know
/// all values. Every rank has the same numbers. Collective.
void score_shared(ParallelModel& model,
                  const SequenceSet& set,
                  std::span<const int64_t> numbers,
                  const ScoringOptions& options,
                  LogProbTable& table);

}  // namespace tapestry::post_training

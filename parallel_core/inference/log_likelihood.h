// How probable a model finds given texts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel_core/pipeline_parallel/parallel_model.h"

namespace tapestry {

/// Tokens, of which those from `first` on are scored, each after all that stand before it.
struct ScoredRow {
  std::vector<int32_t> tokens;
  int64_t first = 1;  ///< at least 1: nothing stands before the first token
};

/// Of the tokens [first, size) of a row.
struct RowScores {
  std::vector<double> log_probs;      ///< natural logarithms; -infinity is possible
  std::vector<uint8_t> is_likeliest;  ///< 1 where no other token (of a lower id: or as) likely
  double sum() const;
  bool all_likeliest() const;
};

struct LogLikelihoodOptions {
  int64_t vocab_size = 0;          ///< ids at and above have no probability; 0: all ids count
  int64_t tokens_per_pass = 1024;  ///< rows are put together up to so many; at least one goes
  bool exact = false;              ///< as GenerationBatch::exact: nothing else changes a bit
};

/// The log-probabilities of the rows' tokens. Rows may have any lengths up to the model's context;
/// rows of similar length go through the model together, and a row's scores depend on the others by
/// rounding alone. Any layout: all ranks of tensor-parallel and context-parallel groups and of a
/// pipeline make the call and get the same. Dropout is off, and the model is left in the mode that
/// it was in. ValueError for a row without tokens to score before its end (a `first` below 1 or
/// above the size; equal to the size gives no scores), IndexError for ids outside the vocabulary.
std::vector<RowScores> log_likelihood(ParallelModel& model,
                                      std::span<const ScoredRow> rows,
                                      const LogLikelihoodOptions& options = {});

}  // namespace tapestry

// What a teacher says of texts, into a file.
#pragma once

#include <cstdint>

#include "parallel_core/post_training/distil/teacher_file.h"
#include "parallel_core/transformer/gpt_model.h"

namespace tapestry::post_training {

struct TextScoringOptions {
  int64_t top_k = 1;
  double temperature = 1;
  int64_t vocabulary = 0;          ///< of the model
  int64_t most_tokens = 0;         ///< of a row: what the model has positions for
  int64_t tokens_per_pass = 2048;  ///< about so many go through the model at once
};

/// The likeliest tokens at every position of every text, into `writer`, which the first
/// tensor-parallel rank of the last stage has (writes_scores()) and others leave null. Collective
/// over the ranks that share the model. ValueError for a text longer than most_tokens, before
/// anything is computed.
void score_texts(GPTModel& model,
                 const SequenceSet& texts,
                 const TextScoringOptions& options,
                 TeacherFileWriter* writer);

/// Whether the calling rank writes.
bool writes_scores(const GPTModel& model);

}  // namespace tapestry::post_training

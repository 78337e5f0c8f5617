// Text from a trained model.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "parallel_core/pipeline_parallel/parallel_model.h"

namespace tapestry {

struct GenerationOptions {
  int64_t max_new_tokens = 100;
  double temperature = 1;  ///< divides the logits; 0: always the likeliest token
  int64_t top_k = 0;       ///< only among the k likeliest; 0: all
  double top_p = 1;        ///< only among the likeliest that together have this probability
  uint64_t seed = 0;
  int64_t vocab_size = 0;   ///< ids at and above are never chosen (padding of the vocabulary)
  int64_t eod_id = -1;      ///< ends the text; -1: none
  int64_t max_context = 0;  ///< the model sees at most so many last tokens
};

/// Chooses the next token from the logits of one position. `draw` in [0, 1) decides. ValueError if
/// there are no logits or one of those looked at is NaN or +infinity.
int64_t sample_token(std::span<const float> logits, const GenerationOptions& options, double draw);

/// Continues the prompt. Token number i (from 0) uses number i of the stream "generate" of the
/// seed. `on_token` is called with each new id. The model is left in the mode it was in. All ranks
/// of a pipeline make the call and get the same text. ValueError for an empty prompt or options
/// outside their range, IndexError for ids outside the vocabulary.
std::vector<int32_t> generate(ParallelModel& model,
                              std::span<const int32_t> prompt,
                              const GenerationOptions& options,
                              const std::function<void(int32_t)>& on_token = {});

}  // namespace tapestry

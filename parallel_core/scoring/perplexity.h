// How well a model foresees a text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "parallel_core/scoring/scorer.h"

namespace tapestry {

/// Sums over the tokens that something stands before: all, if the tokenizer begins texts with an id
/// of its own, else all but the first.
struct TextScore {
  int64_t tokens = 0;  ///< of the text
  int64_t scored_tokens = 0;
  int64_t scored_bytes = 0;  ///< of the text, that the scored tokens stand for
  int64_t windows = 0;
  double log_likelihood = 0;  ///< natural logarithm

  /// exp(-log_likelihood / scored_tokens), and of bytes.
  double perplexity_per_token() const;
  double perplexity_per_byte() const;
  /// -log2 of the likelihood for each byte, which models with different tokenizers can be compared
  /// by.
  double bits_per_byte() const;
};

/// Scores a text in windows of scorer.context() tokens that move on by `stride`; see
/// text_windows.h. Collective. ValueError for a text without a token to score, named `name` in
/// messages, and for a stride outside [1, context].
TextScore score_text(Scorer& scorer,
                     std::string_view text,
                     int64_t stride,
                     const std::string& name);

}  // namespace tapestry

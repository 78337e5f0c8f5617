// From text to tokens, of which some are to be learned.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel_core/sft/answers.h"
#include "text/tokenizers/tokenizer.h"

namespace tapestry::sft {

struct EncodedExample {
  std::vector<int32_t> ids;
  /// 1 for each token that is to be learned: loss_mask[t] = answer[t + 1].
  std::vector<uint8_t> answer;
  /// Learned tokens that reach over the beginning or the end of an answer.
  int64_t crossing = 0;
  /// The text begins with the token that the post-processor puts in front as well.
  bool begins_twice = false;

  /// Tokens that something is learned from: the first one is never predicted.
  int64_t learned() const;
};

enum class LearnedTokens {
  kAnswers,
  kAll,  ///< prompts, too
};

/// The text's tokens with, unless a template wrote it, those that the tokenizer's post-processor
/// puts in front, not learned, and `eod`, learned, behind. A token is learned if it has a byte of
/// an answer; one without bytes if it stands inside of an answer, or at its beginning. ValueError
/// if `eod` is wanted and is -1.
///
/// `next_turn`, where it is not -1, begins the next message and so ends an answer that a template
/// wrote (data::TurnEnd::begins_next): behind an answer it is learned, and put where the text ends.
EncodedExample encode_example(const AnsweredText& answered,
                              const data::Tokenizer& tokenizer,
                              int32_t eod,
                              LearnedTokens learned = LearnedTokens::kAnswers,
                              int32_t next_turn = -1);

}  // namespace tapestry::sft

// From the texts of an example to tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel_core/post_training/examples/example_line.h"
#include "text/chat/chat_format.h"
#include "text/tokenizers/tokenizer.h"

namespace tapestry::post_training {

struct LineEncoding {
  const data::Tokenizer* tokenizer = nullptr;
  const chat::ChatFormat* format = nullptr;  ///< null as long as no example is a conversation
  std::string without_format;                ///< why it is null, for a message; may be empty
  int32_t eod = -1;                          ///< the token that ends a text
};

/// An answer with what it answers.
struct EncodedAnswer {
  std::vector<int32_t> prompt;
  std::vector<int32_t> completion;
  bool is_empty = false;  ///< the answer says nothing
  bool is_joined = true;  ///< see encode_line
};

/// The sequences of a line, one for each answer; of a prompt alone one without completion. An
/// answer to no prompt (ExampleFormat::kReward) is all completion.
///
/// A text begins with what the tokenizer's post-processor puts in front, and ends with the end
/// token, `eod`, whether it says so or not. A conversation is what the template makes of it: the
/// prompt with its generation prompt, or what of it begins the whole; the completion is the rest.
/// Tokens are those of prompt and completion as one text where the prompt's own tokens begin it;
/// where the border lies inside a token they are encoded apart (is_joined false). Source: TRL's
/// trainers, which cut by the number of the prompt's tokens there.
///
/// ValueError that begins with `place`: there is no template, it fails, or what it makes of the
/// whole does not begin with what it makes of the prompt; there is no end token.
std::vector<EncodedAnswer> encode_line(const ExampleLine& line,
                                       const std::string& place,
                                       const LineEncoding& encoding);

}  // namespace tapestry::post_training

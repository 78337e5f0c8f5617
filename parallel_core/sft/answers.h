// Which text an example becomes, and which parts of it are answers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "parallel_core/sft/example.h"
#include "text/chat/chat_format.h"
#include "text/tokenizers/tokenizer.h"

namespace tapestry::sft {

struct AnsweredText {
  std::string text;
  /// Bytes of the text, ascending, none over another. Those of an example that is not a
  /// conversation end with the text, and what ends the document belongs to them.
  std::vector<data::TextSpan> answers;
  /// The answered message, where a conversation became one example for each answer.
  std::optional<int64_t> unrolled_to;
  /// A template has written it, with all special tokens that belong to it.
  bool rendered = false;
};

using TextSink = std::function<void(const AnsweredText& text)>;

/// Hands over the texts of an example, one after the other. Prompt and completion are one text. A
/// conversation is what the template makes of it without generation prompt. Where the template
/// marks with {% generation %} what the model says, that is learned. Else the answer that is
/// message i, whose role is "assistant", reaches from the end of render(messages before i,
/// add_generation_prompt) to that of render(messages up to and with i). Where the generation prompt
/// has more than an answer begins with (the opening of a thought), it reaches from where the two
/// part. Where render(messages up to and with i) is not a beginning of the whole (templates that
/// rewrite earlier turns), there is one text for each answer instead: that render, of which message
/// i is learned. A conversation without answers gives one text without.
///
/// `format` may be null as long as no example is a conversation; `without_format` then says why.
/// ValueError that begins with
/// `place` (FILE:LINE): there is no template; the template fails, or render(messages up to and with
/// i) does not even begin as render(messages before i, add_generation_prompt) without the prompt.
/// Both name it.
void each_answered_text(const Example& example,
                        const chat::ChatFormat* format,
                        const std::string& place,
                        const TextSink& sink,
                        const std::string& without_format = "");

/// All of them.
std::vector<AnsweredText> answered_texts(const Example& example,
                                         const chat::ChatFormat* format,
                                         const std::string& place);

}  // namespace tapestry::sft

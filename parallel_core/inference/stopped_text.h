// The text of a continuation while its tokens come, up to a stop string.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "text/tokenizers/text_stream.h"

namespace tapestry {

/// Turns tokens into text that can be shown at once. A stop string ends the text before its first
/// place, wherever the boundaries of tokens fall; what could be the beginning of one is held back
/// until it is certain. It must not outlive the tokenizer.
class StoppedText {
 public:
  /// The text follows `prompt`, which counts for what a tokenizer writes between two tokens, but is
  /// not searched. ValueError for an empty stop string.
  StoppedText(const data::Tokenizer& tokenizer,
              std::span<const int32_t> prompt,
              std::vector<std::string> stops);

  /// The text that the token makes certain. Once it has stopped, nothing comes any more.
  std::string add(int32_t id);
  /// What was held back, when no more tokens come.
  std::string finish();

  bool stopped() const { return !stop_.empty(); }
  /// The stop string that was found first; of two at one place the longer one.
  const std::string& stop() const { return stop_; }
  /// The text of the prompt's tokens, without a character that is not whole yet.
  const std::string& prompt_text() const { return prompt_text_; }
  /// All that add() and finish() have given.
  const std::string& text() const { return text_; }

 private:
  std::string take(const std::string& piece, bool last);
  std::string without_prompt(std::string piece);

  data::TextStream stream_;
  std::vector<std::string> stops_;
  std::string prompt_text_;
  std::string owed_;  // text of the prompt that the tokenizer holds back until more tokens come
  std::string text_;
  std::string held_;  // may begin a stop string
  std::string stop_;
};

}  // namespace tapestry

// Text as ids come, for answers that are shown while they are made.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "text/tokenizers/tokenizer.h"

namespace tapestry::data {

/// The pieces of text of all calls, one behind the other, are decode() of all ids. What a later id
/// could change is held back: a character of which bytes are missing, bytes of which more may come,
/// a space that is only there between words. It must not outlive the tokenizer.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer) : decoder_(tokenizer.text_decoder()) {}

  /// The text that is certain now. ValueError for an id outside the vocabulary.
  std::string add(int32_t id) { return decoder_->add(id); }
  /// What is left when no more ids come. The stream can then be used for another text.
  std::string finish() { return decoder_->finish(); }

 private:
  std::unique_ptr<TextDecoder> decoder_;
};

}  // namespace tapestry::data

// Unicode's normal forms, by utf8proc.
#pragma once

#include <memory>

#include "text/tokenizers/huggingface/aligned_text.h"

namespace tapestry::data::huggingface {

/// Writes texts in NFC, NFD, NFKC or NFKD. Most text is in NFC already, and is only looked at.
class NormalForm {
 public:
  NormalForm(bool compatible, bool composed);
  void apply(AlignedText& text) const;

 private:
  struct Changing;  // which code points may change
  bool compatible_;
  bool composed_;
  std::shared_ptr<const Changing> changing_;
};

/// The general category of a code point, "Mn" for example.
const char* general_category(uint32_t code_point);

/// A character in lower case: one character, two for U+0130.
void append_lowercase(std::string& text, uint32_t code_point);

/// Unicode's White_Space.
bool is_white_space(uint32_t code_point);

}  // namespace tapestry::data::huggingface

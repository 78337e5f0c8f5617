#include "text/tokenizers/huggingface/pattern.h"

#include "autograd/tensor/error.h"
#include "text/tokenizers/huggingface/aligned_text.h"
#include "text/tokenizers/huggingface/pattern_syntax.h"

namespace tapestry::data::huggingface {

Pattern Pattern::regex(std::string_view expression) {
  constexpr size_t kLongest = 16384;
  check<ValueError>(expression.size() <= kLongest, "a pattern of ", expression.size(),
                    " bytes, expected at most ", kLongest);
  Pattern pattern;
  pattern.expression_ = RegularExpression::for_texts(std::string(expression), pcre2_pattern);
  return pattern;
}

Pattern Pattern::literal(std::string_view text) {
  if (text.empty()) {
    return regex("");
  }
  Pattern pattern;
  pattern.literal_ = text;
  return pattern;
}

Pattern::Finder::Finder(const Pattern& pattern, std::string_view text)
    : pattern_(pattern), text_(text) {
  if (pattern.expression_) {
    search_.emplace(*pattern.expression_, text);
  }
}

bool Pattern::Finder::find(Match& match) {
  if (!search_) {
    const size_t at = text_.find(pattern_.literal_, from_);
    match = {at, at + pattern_.literal_.size()};
    return at != std::string_view::npos;
  }
  return search_->find(from_, match);
}

bool Pattern::Finder::next(Match& match) {
  while (from_ <= text_.size()) {
    if (!find(match)) {
      from_ = text_.size() + 1;
      return false;
    }
    if (match.begin == match.end && match.end == last_end_) {
      from_ = match.end + (match.end < text_.size() ? character_length(text_, match.end) : 1);
      continue;
    }
    from_ = match.end;
    last_end_ = match.end;
    return true;
  }
  return false;
}

}  // namespace tapestry::data::huggingface

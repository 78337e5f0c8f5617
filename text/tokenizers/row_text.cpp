#include "text/tokenizers/row_text.h"

#include <vector>

#include "autograd/tensor/error.h"
#include "text/util/utf8.h"

namespace tapestry::data {

std::string row_text(const Tokenizer& tokenizer, std::span<const int64_t> ids, int64_t most) {
  check<ValueError>(most >= 1, "row_text: at most ", most, " characters, expected at least 1");
  std::string bytes;
  std::vector<int32_t> known;
  const auto decode_known = [&] {
    bytes += tokenizer.decode(known);
    known.clear();
  };
  for (const int64_t id : ids) {
    if (id >= 0 && id < tokenizer.vocab_size()) {
      known.push_back(static_cast<int32_t>(id));
    } else {
      decode_known();
      bytes += "\xEF\xBF\xBD";
    }
  }
  decode_known();
  std::string text = replace_invalid_utf8(bytes);
  int64_t characters = 0;
  for (size_t at = 0; at < text.size(); at += character_length(text, at)) {
    if (characters++ == most) {
      return text.substr(0, at) + "...";
    }
  }
  return text;
}

}  // namespace tapestry::data

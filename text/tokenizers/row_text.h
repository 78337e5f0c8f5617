// Token ids as text for people to read.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "text/tokenizers/tokenizer.h"

namespace tapestry::data {

/// The text of token ids in UTF-8. U+FFFD stands for an id that the tokenizer does not have and for
/// bytes that are no UTF-8, as where a character is cut; special ids have no text. Of a text of
/// more than `most` code points the first `most`, and "..." behind them. ValueError for `most`
/// below 1.
std::string row_text(const Tokenizer& tokenizer, std::span<const int64_t> ids, int64_t most);

}  // namespace tapestry::data

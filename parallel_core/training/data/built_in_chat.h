// The chat format of a model whose folder has none.
#pragma once

#include <cstdint>
#include <string>

#include "text/chat/chat_format.h"
#include "text/tokenizers/tokenizer.h"

namespace tapestry {

/// A special token as it is spelt; empty for one that has no spelling, and for an id below 0.
std::string token_spelling(const data::Tokenizer& tokenizer, int32_t id);

/// The token that ends a turn of ChatML: its own, else what ends a text.
std::string built_in_turn_end(const data::Tokenizer& tokenizer);

/// ChatML with that end of a turn, and the tokenizer's special tokens: what a tuning on
/// conversations writes, and what such a model is asked in.
chat::ChatFormat built_in_chat(const data::Tokenizer& tokenizer);

}  // namespace tapestry

// The token that ends what an assistant says.
#pragma once

#include <cstdint>

#include "text/chat/chat_format.h"
#include "text/tokenizers/tokenizer.h"

namespace tapestry::data {

struct TurnEnd {
  int32_t id = -1;  ///< -1: the template writes none
  /// A template closes a message with the beginning of the next one (GLM's "<|user|>"): there is no
  /// such token behind the last message.
  bool begins_next = false;
};

/// The first special token that the template writes behind an answer. None for a template that
/// fails on a plain conversation.
TurnEnd find_turn_end(const chat::ChatFormat& format, const Tokenizer& tokenizer);

}  // namespace tapestry::data

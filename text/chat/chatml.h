// The template for models that have none.
#pragma once

#include <memory>
#include <string>

#include "text/chat/chat_template.h"

namespace tapestry::chat {

/// ChatML: "<|im_start|>ROLE\nCONTENT" and `end_of_turn` and a newline for each message, then
/// "<|im_start|>assistant\n" for an answer. `end_of_turn` is "<|im_end|>" where the tokenizer has
/// that token, else one that it has and that ends a text, so that answers can be seen to end.
/// ValueError in rendering for a content that is no text.
std::shared_ptr<const ChatTemplate> chatml_template(const std::string& end_of_turn = "<|im_end|>");

}  // namespace tapestry::chat

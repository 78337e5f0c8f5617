#include "parallel_core/training/data/built_in_chat.h"

#include <utility>

#include "text/chat/chatml.h"

namespace tapestry {

std::string token_spelling(const data::Tokenizer& tokenizer, int32_t id) {
  return id >= 0 ? tokenizer.decode_with_special({&id, 1}) : std::string();
}

std::string built_in_turn_end(const data::Tokenizer& tokenizer) {
  const std::string own = "<|im_end|>";
  const std::string of_text = token_spelling(tokenizer, tokenizer.eod_id());
  return tokenizer.id_of(own) || of_text.empty() ? own : of_text;
}

chat::ChatFormat built_in_chat(const data::Tokenizer& tokenizer) {
  chat::ChatFormat format;
  for (const auto& [name, id] :
       {std::pair{"bos_token", tokenizer.bos_id()}, std::pair{"eos_token", tokenizer.eod_id()}}) {
    if (std::string token = token_spelling(tokenizer, id); !token.empty()) {
      format.special_tokens.emplace_back(name, std::move(token));
    }
  }
  format.chat_template = chat::chatml_template(built_in_turn_end(tokenizer));
  return format;
}

}  // namespace tapestry

#include "text/tokenizers/turn_end.h"

#include <string>
#include <string_view>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"

namespace tapestry::data {
namespace {

using ChatJson = nlohmann::ordered_json;

constexpr const char* kAnswer = "Seventeen";
constexpr const char* kQuestion = "Eighteen";

int32_t first_special(const Tokenizer& tokenizer, std::string_view text) {
  for (const int32_t id : tokenizer.encode(text)) {
    const bool special =
        tokenizer.decode({&id, 1}).empty() && !tokenizer.decode_with_special({&id, 1}).empty();
    if (special || id == tokenizer.eod_id()) {
      return id;
    }
  }
  return -1;
}

}  // namespace

TurnEnd find_turn_end(const chat::ChatFormat& format, const Tokenizer& tokenizer) {
  ChatJson messages = {{{"role", "user"}, {"content", "What?"}},
                       {{"role", "assistant"}, {"content", kAnswer}}};
  try {
    const std::string text = format.render(messages, /*add_generation_prompt=*/false);
    const size_t answer = text.rfind(kAnswer);
    if (answer == std::string::npos) {
      return {};
    }
    const std::string_view behind =
        std::string_view(text).substr(answer + std::string_view(kAnswer).size());
    if (const int32_t id = first_special(tokenizer, behind); id >= 0) {
      return {id, false};
    }
    messages.push_back({{"role", "user"}, {"content", kQuestion}});
    const std::string longer = format.render(messages, /*add_generation_prompt=*/false);
    const size_t said = longer.rfind(kAnswer);
    const size_t asked = longer.rfind(kQuestion);
    if (said == std::string::npos || asked == std::string::npos || asked < said) {
      return {};
    }
    const size_t begin = said + std::string_view(kAnswer).size();
    const int32_t id =
        first_special(tokenizer, std::string_view(longer).substr(begin, asked - begin));
    return {id, id >= 0};
  } catch (const Error&) {  // which whoever renders a real conversation is told
    return {};
  }
}

}  // namespace tapestry::data

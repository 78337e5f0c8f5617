#include "text/tokenizers/turn_end.h"

#include <gtest/gtest.h>

#include "text/tokenizers/huggingface/huggingface_tokenizer.h"

namespace tapestry::data {
namespace {

TurnEnd end_of(const std::string& source, const Tokenizer& tokenizer) {
  chat::ChatFormat format;
  format.chat_template = std::make_shared<chat::ChatTemplate>(source, "T.jinja");
  return find_turn_end(format, tokenizer);
}

TEST(TurnEnd, IsTheFirstSpecialTokenBehindAnAnswer) {
  const HuggingFaceTokenizer tokenizer("tests/data/golden_tokenizers/own_chat");
  const auto chatml = end_of(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
      "<|endoftext|>{% endfor %}",
      tokenizer);
  EXPECT_EQ(chatml.id, tokenizer.id_of("<|im_end|>"));
  EXPECT_FALSE(chatml.begins_next);
  const auto next = end_of(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}", tokenizer);
  EXPECT_EQ(next.id, tokenizer.id_of("<|im_start|>"));
  EXPECT_TRUE(next.begins_next);
  EXPECT_EQ(
      end_of("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", tokenizer).id,
      -1);
  EXPECT_EQ(end_of("{{ raise_exception('no') }}", tokenizer).id, -1);
}

}  // namespace
}  // namespace tapestry::data

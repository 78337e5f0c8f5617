#include "parallel_core/sft/answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "parallel_core/sft/encode_example.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::sft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr const char* kPlain =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";
// Shows thoughts of the last answer alone.
constexpr const char* kForgetful =
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.thought and loop.last %}({{ m.thought }}){% endif %}{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

chat::ChatFormat format_of(const std::string& source) {
  return {.chat_template = std::make_shared<chat::ChatTemplate>(source, "T.jinja")};
}

std::vector<AnsweredText> texts_of(const std::string& line, const std::string& source) {
  const chat::ChatFormat format = format_of(source);
  return answered_texts(parse_example(line, "FILE:7"), &format, "FILE:7");
}

std::vector<std::string> answers_in(const AnsweredText& text) {
  std::vector<std::string> answers;
  for (const data::TextSpan& span : text.answers) {
    answers.push_back(text.text.substr(static_cast<size_t>(span.begin),
                                       static_cast<size_t>(span.end - span.begin)));
  }
  return answers;
}

TEST(AnsweredTexts, PromptAndCompletionAreOneText) {
  const auto texts = answered_texts(parse_example(R"({"prompt": "ab", "completion": " c"})", "F:1"),
                                    nullptr, "F:1");
  ASSERT_THAT(texts, SizeIs(1));
  EXPECT_EQ(texts[0].text, "ab c");
  EXPECT_THAT(texts[0].answers, ElementsAre(data::TextSpan{2, 4}));
  EXPECT_FALSE(texts[0].rendered);
  const auto text = answered_texts(parse_example(R"({"text": "all"})", "F:1"), nullptr, "F:1");
  EXPECT_THAT(text[0].answers, ElementsAre(data::TextSpan{0, 3}));
}

TEST(AnsweredTexts, AnswersOfAConversation) {
  const auto texts = texts_of(
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"},
          {"role": "user", "content": "r"}, {"role": "assistant", "content": "bb"},
          {"role": "user", "content": "s"}]})",
      kPlain);
  ASSERT_THAT(texts, SizeIs(1));
  EXPECT_EQ(texts[0].text, "<user>q;<assistant>a;<user>r;<assistant>bb;<user>s;");
  EXPECT_THAT(answers_in(texts[0]), ElementsAre("a;", "bb;"));
  EXPECT_TRUE(texts[0].rendered);
  EXPECT_FALSE(texts[0].unrolled_to.has_value());
}

TEST(AnsweredTexts, OneForEachAnswerWhereTurnsAreRewritten) {
  const std::string line =
      R"({"messages": [{"role": "user", "content": "q"},
          {"role": "assistant", "content": "a", "thought": "t"},
          {"role": "user", "content": "r"}, {"role": "assistant", "content": "b"}]})";
  const auto texts = texts_of(line, kForgetful);
  ASSERT_THAT(texts, SizeIs(2));
  EXPECT_EQ(texts[0].text, "<user>q;<assistant>(t)a;");
  EXPECT_THAT(answers_in(texts[0]), ElementsAre("(t)a;"));
  EXPECT_EQ(texts[0].unrolled_to, 1);
  EXPECT_EQ(texts[1].text, "<user>q;<assistant>a;<user>r;<assistant>b;");
  EXPECT_THAT(answers_in(texts[1]), ElementsAre("b;"));
  EXPECT_EQ(texts[1].unrolled_to, 3);
}

TEST(AnsweredTexts, ToolsAreAVariable) {
  const auto texts =
      texts_of(R"({"messages": [{"role": "assistant", "content": "a"}], "tools": [{"name": "f"}]})",
               std::string("{% if tools %}{{ tools | tojson }}{% endif %}") + kPlain);
  EXPECT_EQ(texts[0].text, R"([{"name": "f"}]<assistant>a;)");
  EXPECT_THAT(answers_in(texts[0]), ElementsAre("a;"));
}

TEST(AnsweredTexts, NobodyAnswers) {
  const auto texts = texts_of(R"({"messages": [{"role": "user", "content": "q"}]})", kPlain);
  ASSERT_THAT(texts, SizeIs(1));
  EXPECT_THAT(texts[0].answers, IsEmpty());
}

TEST(AnsweredTexts, WhatCannotBeFoundNamesTemplateAndLine) {
  const std::string line =
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})";
  const std::string other_prompt =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"
      "{% if add_generation_prompt %}<bot>{% endif %}";
  EXPECT_ERROR(texts_of(line, other_prompt), ValueError, "FILE:7: template T.jinja: ");
  EXPECT_ERROR(texts_of(line, other_prompt), ValueError, "messages[1]");
  const std::string refusing = "{{ raise_exception('no ' ~ messages[0].role) }}";
  EXPECT_ERROR(texts_of(line, refusing), ValueError, "FILE:7: ");
  EXPECT_ERROR(texts_of(line, refusing), ValueError, "T.jinja");
  EXPECT_ERROR(texts_of(line, refusing), ValueError, "no user");
  EXPECT_ERROR(answered_texts(parse_example(line, "F:1"), nullptr, "F:1"), ValueError,
               "F:1: has \"messages\", but there is no chat template");
}

// As DeepSeek-R1's: the generation prompt opens a thought, the history shows none.
constexpr const char* kThinking =
    "{% for m in messages %}{% if m.role == 'user' %}[U]{{ m.content }}{% else %}"
    "[A]{{ m.content.split('</think>')[-1] }}[end]{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[A]<think>\n{% endif %}";

TEST(AnsweredTexts, AGenerationPromptMayOpenAThought) {
  const auto texts = texts_of(
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "one"},
          {"role": "user", "content": "r"},
          {"role": "assistant", "content": "<think>hm</think>two"}]})",
      kThinking);
  ASSERT_THAT(texts, SizeIs(1));
  EXPECT_EQ(texts[0].text, "[U]q[A]one[end][U]r[A]two[end]");
  EXPECT_THAT(answers_in(texts[0]), ElementsAre("one[end]", "two[end]"));
  // The answer's own beginning is the prompt's.
  const auto same = texts_of(
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<b>x"}]})",
      kThinking);
  EXPECT_EQ(same[0].text, "[U]q[A]<b>x[end]");
  EXPECT_THAT(answers_in(same[0]), ElementsAre("b>x[end]"));
}

TEST(AnsweredTexts, GenerationMarksSayWhatIsLearned) {
  // The prompt is another one, and the first turn is rewritten: neither matters.
  const std::string marked =
      "{% for m in messages %}{% if m.role == 'assistant' %}<assistant>"
      "{% generation %}{{ m.content }}</s>{% endgeneration %}\n"
      "{% else %}<{{ m.role }}>{{ m.content if loop.last else '...' }}{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}<bot>{% endif %}";
  const auto texts = texts_of(
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a\u00e9"},
          {"role": "user", "content": "r"}, {"role": "assistant", "content": "b"}]})",
      marked);
  ASSERT_THAT(texts, SizeIs(1));
  EXPECT_EQ(texts[0].text, "<user>...<assistant>a\xC3\xA9</s><user>...<assistant>b</s>");
  EXPECT_THAT(answers_in(texts[0]), ElementsAre("a\xC3\xA9</s>", "b</s>"));
  EXPECT_TRUE(texts[0].rendered);
  EXPECT_FALSE(texts[0].unrolled_to.has_value());
  // Marks whose place is not known: the answers are found as without.
  const std::string in_macro =
      "{% macro say(m) %}{% generation %}{{ m.content }};{% endgeneration %}{% endmacro %}"
      "{% for m in messages %}<{{ m.role }}>{{ say(m) }}{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}";
  const auto found = texts_of(
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})",
      in_macro);
  EXPECT_THAT(answers_in(found[0]), ElementsAre("a;"));
}

TEST(EncodeExample, MasksOfPromptsAndAnswers) {
  const data::ByteTokenizer bytes;
  const EncodedExample example =
      encode_example({.text = "abc", .answers = {{1, 3}}}, bytes, bytes.eod_id());
  EXPECT_THAT(example.ids, ElementsAre('a', 'b', 'c', 256));
  EXPECT_THAT(example.answer, ElementsAre(0, 1, 1, 1));
  EXPECT_EQ(example.learned(), 3);
  EXPECT_EQ(example.crossing, 0);
  const EncodedExample whole = encode_example({.text = "abc", .answers = {{1, 3}}}, bytes,
                                              bytes.eod_id(), LearnedTokens::kAll);
  EXPECT_THAT(whole.answer, ElementsAre(1, 1, 1, 1));
  EXPECT_EQ(whole.learned(), 3);  // nothing predicts the first one
  const EncodedExample rendered =
      encode_example({.text = "abc", .answers = {{0, 1}, {2, 3}}, .rendered = true}, bytes, -1);
  EXPECT_THAT(rendered.ids, ElementsAre('a', 'b', 'c'));
  EXPECT_THAT(rendered.answer, ElementsAre(1, 0, 1));
  EXPECT_EQ(rendered.learned(), 1);
  EXPECT_ERROR(encode_example({.text = "abc"}, bytes, -1), ValueError, "eos_token_id");
}

// Templates that close a message with the beginning of the next one.
TEST(EncodeExample, WhatBeginsTheNextMessageEndsAnAnswer) {
  const data::ByteTokenizer bytes;
  const AnsweredText text{.text = "U?Aa.U?Ab.", .answers = {{3, 5}, {8, 10}}, .rendered = true};
  const EncodedExample example =
      encode_example(text, bytes, bytes.eod_id(), LearnedTokens::kAnswers, 'U');
  EXPECT_THAT(example.ids, ElementsAre('U', '?', 'A', 'a', '.', 'U', '?', 'A', 'b', '.', 'U'));
  EXPECT_THAT(example.answer, ElementsAre(0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1));
  const EncodedExample plain =
      encode_example({.text = "ab", .answers = {{1, 2}}}, bytes, 256, LearnedTokens::kAnswers, 'U');
  EXPECT_THAT(plain.ids, ElementsAre('a', 'b', 256));
}

// Pairs of bytes are tokens, with an id of their own in front of a text and nothing behind.
class PairTokenizer final : public data::Tokenizer {
 public:
  int64_t vocab_size() const override { return 1000; }
  std::vector<int32_t> encode(std::string_view text) const override {
    return encode_with_spans(text).ids;
  }
  data::Encoding encode_with_spans(std::string_view text) const override {
    data::Encoding encoding{{500}, {{0, 0}}};  // a piece that the text does not have
    const auto end = static_cast<int64_t>(text.size());
    for (int64_t i = 0; i < end; i += 2) {
      encoding.ids.push_back(static_cast<int32_t>(i));
      encoding.spans.push_back({i, std::min(i + 2, end)});
    }
    return encoding;
  }
  std::vector<int32_t> ids_before() const override { return {900}; }
  std::string decode(std::span<const int32_t> /*ids*/) const override { return {}; }
  std::string decode_with_special(std::span<const int32_t> /*ids*/) const override { return {}; }
  std::unique_ptr<data::TextDecoder> text_decoder() const override { return nullptr; }
  std::optional<int32_t> id_of(std::string_view /*token*/) const override { return {}; }
  int32_t eod_id() const override { return 901; }
  int32_t pad_id() const override { return -1; }
  bool separable_at_newlines() const override { return false; }
  std::string describe() const override { return "pairs"; }
  data::TokenizerIdentity identity() const override { return {}; }
};

TEST(EncodeExample, ATokenOverABoundaryIsLearnedAndCounted) {
  const PairTokenizer pairs;
  const EncodedExample example =
      encode_example({.text = "abcdef", .answers = {{3, 6}}}, pairs, pairs.eod_id());
  EXPECT_THAT(example.ids, ElementsAre(900, 500, 0, 2, 4, 901));
  EXPECT_THAT(example.answer, ElementsAre(0, 0, 0, 1, 1, 1));
  EXPECT_EQ(example.crossing, 1);
  const EncodedExample inside = encode_example(
      {.text = "abcdef", .answers = {{2, 3}, {4, 6}}, .rendered = true}, pairs, pairs.eod_id());
  EXPECT_THAT(inside.ids, ElementsAre(500, 0, 2, 4));
  EXPECT_THAT(inside.answer, ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(inside.crossing, 1);
  // Without a prompt what the tokenizer puts in belongs to the answer.
  const EncodedExample all = encode_example({.text = "ab", .answers = {{0, 2}}}, pairs, 901);
  EXPECT_THAT(all.answer, ElementsAre(0, 1, 1, 1));
}

}  // namespace
}  // namespace tapestry::sft

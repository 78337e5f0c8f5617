#include "parallel_core/sft/answers.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "autograd/tensor/error.h"
#include "text/util/utf8.h"

namespace tapestry::sft {
namespace {

using data::TextSpan;

// Renders beginnings of one conversation.
class Conversation {
 public:
  Conversation(const Example& example, const chat::ChatFormat& format, const std::string& place)
      : example_(example), messages_(example.messages), format_(format), place_(place) {
    if (!example.tools.is_null()) {
      extra_["tools"] = example.tools;
    }
  }

  size_t size() const { return messages_.size(); }
  bool is_answer(size_t i) const { return messages_[i].at("role") == "assistant"; }
  std::string render(size_t count,
                     bool add_generation_prompt,
                     chat::GenerationMarks* marks = nullptr) const {
    return render(first(count), add_generation_prompt, marks);
  }
  // The messages up to and with i, which says something else.
  std::string render_with_content(size_t i, const char* content) const {
    Json messages = first(i + 1);
    messages[i]["content"] = content;
    return render(messages, false, nullptr);
  }
  std::string template_name() const {
    const bool for_tools = !example_.tools.is_null() && format_.tool_template != nullptr;
    return (for_tools ? *format_.tool_template : *format_.chat_template).name();
  }

 private:
  Json first(size_t count) const {
    Json messages = Json::array();
    for (size_t i = 0; i < count; ++i) {
      messages.push_back(messages_[i]);
    }
    return messages;
  }
  std::string render(const Json& messages,
                     bool add_generation_prompt,
                     chat::GenerationMarks* marks) const {
    try {
      return format_.render(messages, add_generation_prompt, extra_, marks);
    } catch (const ValueError& error) {
      throw ValueError(concat(place_, ": the first ", messages.size(), " of ", size(), " messages",
                              add_generation_prompt ? " with a generation prompt: " : ": ",
                              error.what()));
    }
  }

  const Example& example_;
  const Json& messages_;
  Json extra_ = Json::object();
  const chat::ChatFormat& format_;
  const std::string& place_;
};

// A message of the assistant, rendered with all that is before it.
struct Turn {
  std::string text;
  std::optional<size_t> begin;  // of the answer; none where that is not known
};

size_t common_beginning(const std::string& a, const std::string& b) {
  const size_t shorter = std::min(a.size(), b.size());
  const auto parted =
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(shorter), b.begin());
  auto length = static_cast<size_t>(parted.first - a.begin());
  // Not inside a character.
  while (length > 0 && length < b.size() && data::continues_character(b[length])) {
    --length;
  }
  return length;
}

// Message i and those before it. The texts are as long as the conversation, so they are made again
// rather than kept.
Turn turn_of(const Conversation& conversation, size_t i) {
  Turn turn{.text = conversation.render(i + 1, false), .begin = std::nullopt};
  const std::string prompt = conversation.render(i, true);
  if (turn.text.starts_with(prompt)) {
    turn.begin = prompt.size();
    return turn;
  }
  // Many a generation prompt opens a thought that no message of the history shows. The answer
  // begins where the two part, if that is not in the middle of what introduces it.
  const size_t common = common_beginning(prompt, turn.text);
  size_t introduced = common_beginning(turn.text, conversation.render_with_content(i, "\x01"));
  while (introduced > 0 && std::isspace(static_cast<unsigned char>(turn.text[introduced - 1]))) {
    --introduced;
  }
  if (introduced > 0 && common >= introduced) {
    turn.begin = common;
  }
  return turn;
}

AnsweredText marked_text(std::string text, const chat::GenerationMarks& marks) {
  AnsweredText marked{.text = std::move(text), .rendered = true};
  for (const auto& [begin, end] : marks.spans) {
    marked.answers.push_back({static_cast<int64_t>(begin), static_cast<int64_t>(end)});
  }
  return marked;
}

// None if a turn is not a beginning of the whole.
std::optional<AnsweredText> rendered_whole(const Conversation& conversation) {
  chat::GenerationMarks marks;
  AnsweredText whole{.text = conversation.render(conversation.size(), false, &marks),
                     .rendered = true};
  if (marks.are_placed && !marks.spans.empty()) {
    return marked_text(std::move(whole.text), marks);
  }
  for (size_t i = 0; i < conversation.size(); ++i) {
    if (!conversation.is_answer(i)) {
      continue;
    }
    const Turn turn = turn_of(conversation, i);
    if (!turn.begin || !whole.text.starts_with(turn.text)) {
      return std::nullopt;
    }
    const TextSpan answer{static_cast<int64_t>(*turn.begin),
                          static_cast<int64_t>(turn.text.size())};
    if (!whole.answers.empty() && answer.begin < whole.answers.back().end) {
      return std::nullopt;
    }
    whole.answers.push_back(answer);
  }
  return whole;
}

}  // namespace

void each_answered_text(const Example& example,
                        const chat::ChatFormat* format,
                        const std::string& place,
                        const TextSink& sink,
                        const std::string& without_format) {
  if (example.kind != ExampleKind::kMessages) {
    const auto begin = static_cast<int64_t>(example.prompt.size());
    std::string text = example.prompt + example.completion;
    const auto end = static_cast<int64_t>(text.size());
    sink({.text = std::move(text), .answers = {{begin, end}}});
    return;
  }
  check<ValueError>(
      format != nullptr, place,
      ": has \"messages\", but there is no chat template beside the tokenizer",
      without_format.empty() ? "" : concat(" that can be used (", without_format, ")"),
      "; name one with dataset_config.chat_template");
  const Conversation conversation(example, *format, place);
  if (const std::optional<AnsweredText> whole = rendered_whole(conversation)) {
    sink(*whole);
    return;
  }
  for (size_t i = 0; i < conversation.size(); ++i) {
    if (!conversation.is_answer(i)) {
      continue;
    }
    Turn turn = turn_of(conversation, i);
    check<ValueError>(turn.begin.has_value(), place, ": template ", conversation.template_name(),
                      ": what it writes of the messages before messages[", i,
                      "] with a generation prompt is not how it begins what it writes with that "
                      "answer, so where the answer begins is not known; mark answers in it with "
                      "{% generation %} ... {% endgeneration %}, or use another "
                      "dataset_config.chat_template");
    const auto end = static_cast<int64_t>(turn.text.size());
    sink({.text = std::move(turn.text),
          .answers = {{static_cast<int64_t>(*turn.begin), end}},
          .unrolled_to = static_cast<int64_t>(i),
          .rendered = true});
  }
}

std::vector<AnsweredText> answered_texts(const Example& example,
                                         const chat::ChatFormat* format,
                                         const std::string& place) {
  std::vector<AnsweredText> texts;
  each_answered_text(example, format, place,
                     [&](const AnsweredText& text) { texts.push_back(text); });
  return texts;
}

}  // namespace tapestry::sft

#include "parallel_core/sft/answers.h"

#include <utility>

#include "autograd/tensor/error.h"

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
  std::string render(size_t count, bool add_generation_prompt) const {
    Json first = Json::array();
    for (size_t i = 0; i < count; ++i) {
      first.push_back(messages_[i]);
    }
    try {
      return format_.render(first, add_generation_prompt, extra_);
    } catch (const ValueError& error) {
      throw ValueError(concat(place_, ": the first ", count, " of ", size(), " messages",
                              add_generation_prompt ? " with a generation prompt: " : ": ",
                              error.what()));
    }
  }
  std::string template_name() const {
    const bool for_tools = !example_.tools.is_null() && format_.tool_template != nullptr;
    return (for_tools ? *format_.tool_template : *format_.chat_template).name();
  }

 private:
  const Example& example_;
  const Json& messages_;
  Json extra_ = Json::object();
  const chat::ChatFormat& format_;
  const std::string& place_;
};

// What messages before i, and up to it, are rendered as.
struct Turn {
  std::string before;
  std::string with;

  // The answer's place in a text that begins with both; none if it does not.
  std::optional<TextSpan> place_in(const std::string& text) const {
    if (before.size() > with.size() || !text.starts_with(before) || !text.starts_with(with)) {
      return std::nullopt;
    }
    return TextSpan{static_cast<int64_t>(before.size()), static_cast<int64_t>(with.size())};
  }
};

// Message i and those before it. Both texts are as long as the conversation, so they are made again
// rather than kept.
Turn turn_of(const Conversation& conversation, size_t i) {
  return {conversation.render(i, true), conversation.render(i + 1, false)};
}

// None if a turn is not a beginning of the whole.
std::optional<AnsweredText> rendered_whole(const Conversation& conversation) {
  AnsweredText whole{.text = conversation.render(conversation.size(), false), .rendered = true};
  for (size_t i = 0; i < conversation.size(); ++i) {
    if (!conversation.is_answer(i)) {
      continue;
    }
    const std::optional<TextSpan> answer = turn_of(conversation, i).place_in(whole.text);
    if (!answer || (!whole.answers.empty() && answer->begin < whole.answers.back().end)) {
      return std::nullopt;
    }
    whole.answers.push_back(*answer);
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
    const std::optional<TextSpan> answer = turn.place_in(turn.with);
    check<ValueError>(answer.has_value(), place, ": template ", conversation.template_name(),
                      ": what it writes ", "of the messages before messages[", i,
                      "] with a generation prompt is not how it begins what it writes with that "
                      "answer, so where ",
                      "the answer begins is not known; use another dataset_config.chat_template");
    sink({.text = std::move(turn.with),
          .answers = {*answer},
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

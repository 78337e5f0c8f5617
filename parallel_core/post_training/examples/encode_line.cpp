#include "parallel_core/post_training/examples/encode_line.h"

#include <algorithm>
#include <utility>

#include "autograd/tensor/error.h"
#include "text/util/utf8.h"

namespace tapestry::post_training {

namespace {

using Ids = std::vector<int32_t>;

// Prompt and whole as texts.
struct BorderedText {
  std::string whole;
  size_t border = 0;  // where the prompt ends
};

bool begins_with(const Ids& whole, const Ids& part) {
  return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin());
}

EncodedAnswer encode_bordered(const BorderedText& text, const data::Tokenizer& tokenizer) {
  EncodedAnswer answer;
  answer.prompt = tokenizer.encode(std::string_view(text.whole).substr(0, text.border));
  Ids whole = tokenizer.encode(text.whole);
  if (begins_with(whole, answer.prompt)) {
    answer.completion.assign(whole.begin() + std::ssize(answer.prompt), whole.end());
  } else {
    answer.completion = tokenizer.encode(std::string_view(text.whole).substr(text.border));
    answer.is_joined = false;
  }
  return answer;
}

// Encodes the texts of one line.
class TextsOfLine {
 public:
  TextsOfLine(const ExampleLine& line, const std::string& place, const LineEncoding& encoding)
      : line_(line), place_(place), encoding_(encoding) {}

  EncodedAnswer prompt() const {
    EncodedAnswer answer;
    if (line_.is_conversation) {
      answer.prompt = encoding_.tokenizer->encode(render(line_.prompt, true));
    } else {
      answer.prompt = begun(line_.prompt.get<std::string>());
    }
    return answer;
  }

  EncodedAnswer answer(const Json& said) const {
    return line_.is_conversation ? conversation(said) : text(said.get<std::string>());
  }

 private:
  // A text's tokens behind those that stand before every text.
  Ids begun(const std::string& text) const {
    Ids ids = encoding_.tokenizer->ids_before();
    const Ids own = encoding_.tokenizer->encode(text);
    ids.insert(ids.end(), own.begin(), own.end());
    return ids;
  }

  EncodedAnswer text(std::string said) const {
    const data::Tokenizer& tokenizer = *encoding_.tokenizer;
    check<ValueError>(encoding_.eod >= 0, tokenizer.describe(),
                      ": has no token that ends a text; name one with dataset_config.eos_token_id");
    const std::string end = tokenizer.decode_with_special({&encoding_.eod, 1});
    if (!end.empty() && said.ends_with(end)) {
      said.resize(said.size() - end.size());
    }
    const bool is_empty = said.empty();
    EncodedAnswer answer;
    if (line_.prompt.is_null()) {
      answer.completion = begun(said);
    } else {
      const auto prompt = line_.prompt.get<std::string>();
      answer = encode_bordered({.whole = prompt + said, .border = prompt.size()}, tokenizer);
      const Ids before = tokenizer.ids_before();
      answer.prompt.insert(answer.prompt.begin(), before.begin(), before.end());
    }
    answer.completion.push_back(encoding_.eod);
    answer.is_empty = is_empty;
    return answer;
  }

  EncodedAnswer conversation(const Json& said) const {
    const bool is_empty = std::all_of(said.begin(), said.end(), [](const Json& message) {
      return !message.contains("content") || message["content"].empty() || message["content"] == "";
    });
    EncodedAnswer answer;
    if (line_.prompt.is_null()) {
      answer.completion = encoding_.tokenizer->encode(render(said, false));
    } else {
      Json messages = line_.prompt;
      messages.insert(messages.end(), said.begin(), said.end());
      std::string whole = render(messages, false);
      const size_t border = border_in(whole);
      answer = encode_bordered({.whole = std::move(whole), .border = border}, *encoding_.tokenizer);
    }
    answer.is_empty = is_empty;
    return answer;
  }

  // Where the prompt of a conversation ends. A generation prompt may open a thought that is not in
  // the history.
  size_t border_in(const std::string& whole) const {
    const std::string prompt = render(line_.prompt, true);
    const size_t shorter = std::min(prompt.size(), whole.size());
    const auto parted = std::mismatch(
        prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(shorter), whole.begin());
    auto common = static_cast<size_t>(parted.first - prompt.begin());
    while (common > 0 && common < whole.size() && data::continues_character(whole[common])) {
      --common;
    }
    if (common < prompt.size()) {
      const std::string without = render(line_.prompt, false);
      check<ValueError>(common >= without.size() && whole.starts_with(without), place_,
                        ": template ", encoding_.format->chat_template->name(),
                        ": what it writes of the prompt is not how it begins what it writes of "
                        "prompt and answer, so where the answer begins is not known; use another "
                        "dataset_config.chat_template");
    }
    return common;
  }

  std::string render(const Json& messages, bool add_generation_prompt) const {
    check<ValueError>(encoding_.format != nullptr, place_,
                      ": has messages, but there is no chat template beside the tokenizer",
                      encoding_.without_format.empty()
                          ? ""
                          : concat(" that can be used (", encoding_.without_format, ")"),
                      "; name one with dataset_config.chat_template");
    try {
      return encoding_.format->render(messages, add_generation_prompt, line_.variables);
    } catch (const ValueError& error) {
      throw ValueError(concat(place_, ": ", error.what()));
    }
  }

  const ExampleLine& line_;
  const std::string& place_;
  const LineEncoding& encoding_;
};

}  // namespace

std::vector<EncodedAnswer> encode_line(const ExampleLine& line,
                                       const std::string& place,
                                       const LineEncoding& encoding) {
  const TextsOfLine texts(line, place, encoding);
  std::vector<EncodedAnswer> encoded;
  for (const Json& answer : line.answers) {
    encoded.push_back(texts.answer(answer));
  }
  if (encoded.empty()) {
    encoded.push_back(texts.prompt());
  }
  return encoded;
}

}  // namespace tapestry::post_training

#include "parallel_core/post_training/examples/example_line.h"

#include <algorithm>
#include <utility>

#include "autograd/tensor/error.h"
#include "text/sources/json_line.h"
#include "text/util/utf8.h"

namespace tapestry::post_training {

namespace {

// One line that is read, and where it stands, for messages.
class LineReading {
 public:
  LineReading(data::JsonLine line, const std::string& place, ExampleFormat format)
      : line_(std::move(line)), place_(place), format_(format) {}

  bool has(const char* name) const {
    const auto found = line_.value.find(name);
    return found != line_.value.end() && !found->is_null();
  }

  // A text or a conversation.
  Json said(const char* name) {
    check<ValueError>(has(name), place_, ": has no \"", name, "\"; expected ", columns_of(format_));
    Json value = std::move(line_.value[name]);
    check<ValueError>(value.is_string() || value.is_array(), place_, ": \"", name, "\" is a JSON ",
                      value.type_name(),
                      ", expected a text or an array of {\"role\", \"content\"}");
    if (value.is_array()) {
      check_messages(name, value);
    }
    if (line_.has_lone_surrogate) {
      data::check_no_lone_surrogate(
          line_, value.is_string() ? value.get<std::string>() : value.dump(), place_);
    }
    return value;
  }

  bool truth(const char* name) const {
    check<ValueError>(has(name), place_, ": has no \"", name, "\"; expected ", columns_of(format_));
    const Json& value = line_.value[name];
    check<ValueError>(value.is_boolean(), place_, ": \"", name, "\" is ", value.dump(),
                      ", expected true (desirable) or false");
    return value.get<bool>();
  }

  std::optional<double> number(const char* name) const {
    if (!has(name)) {
      return std::nullopt;
    }
    const Json& value = line_.value[name];
    check<ValueError>(value.is_number(), place_, ": \"", name, "\" is ", value.dump(),
                      ", expected a number");
    return value.get<double>();
  }

  // What a template is told beside the messages. TRL also takes tools as a text that is JSON.
  Json variables() {
    Json all = Json::object();
    if (has("chat_template_kwargs")) {
      all = std::move(line_.value["chat_template_kwargs"]);
      check<ValueError>(all.is_object(), place_, ": \"chat_template_kwargs\" is a JSON ",
                        all.type_name(), ", expected an object");
    }
    if (has("tools")) {
      Json tools = std::move(line_.value["tools"]);
      if (tools.is_string()) {
        tools = Json::parse(tools.get<std::string>(), nullptr, /*allow_exceptions=*/false);
      }
      check<ValueError>(tools.is_array(), place_, ": \"tools\" is a JSON ", tools.type_name(),
                        ", expected an array");
      all["tools"] = std::move(tools);
    }
    return all;
  }

  const Json& object() const { return line_.value; }

 private:
  void check_messages(const char* name, const Json& messages) const {
    check<ValueError>(!messages.empty(), place_, ": \"", name,
                      "\" is empty, expected an array of {\"role\", \"content\"}");
    for (size_t i = 0; i < messages.size(); ++i) {
      const Json& message = messages[i];
      check<ValueError>(message.is_object(), place_, ": ", name, "[", i, "] is a JSON ",
                        message.type_name(), ", expected an object with \"role\" and \"content\"");
      check<ValueError>(message.contains("role") && message["role"].is_string(), place_, ": ", name,
                        "[", i,
                        "].role is missing or no text, expected \"user\", \"assistant\", ...");
      const bool has_content = message.contains("content");
      check<ValueError>(!has_content || message["content"].is_null() ||
                            message["content"].is_string() || message["content"].is_array(),
                        place_, ": ", name, "[", i, "].content is a JSON ",
                        has_content ? message["content"].type_name() : "", ", expected a text");
    }
  }

  data::JsonLine line_;
  const std::string& place_;
  ExampleFormat format_;
};

// Letters, not bytes, are what one text may end with and the other not.
size_t beginning_of_letter(const std::string& text, size_t at) {
  while (at > 0 && at < text.size() && data::continues_character(text[at])) {
    --at;
  }
  return at;
}

size_t common_text(const std::string& a, const std::string& b) {
  const size_t shorter = std::min(a.size(), b.size());
  const auto parted =
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(shorter), b.begin());
  const auto length = static_cast<size_t>(parted.first - a.begin());
  if (length == shorter) {
    return length == 0 ? 0 : beginning_of_letter(a.size() == shorter ? a : b, length - 1);
  }
  const size_t begun = beginning_of_letter(a, length);
  return begun > 0 && a[begun - 1] == ' ' ? begun - 1 : begun;
}

size_t common_messages(const Json& a, const Json& b) {
  const size_t shorter = std::min(a.size(), b.size());
  for (size_t i = 0; i < shorter; ++i) {
    if (a[i] != b[i]) {
      return i;
    }
  }
  return shorter - 1;
}

Json messages_between(const Json& messages, size_t begin, size_t end) {
  Json part = Json::array();
  for (size_t i = begin; i < end; ++i) {
    part.push_back(messages[i]);
  }
  return part;
}

void take_prompt_out(ExampleLine& example, const std::string& place) {
  Json& chosen = example.answers[0];
  Json& rejected = example.answers[1];
  if (chosen.is_array()) {
    const size_t common = common_messages(chosen, rejected);
    check<ValueError>(
        common > 0, place,
        ": \"chosen\" and \"rejected\" have no message in common, so that there is no "
        "prompt; begin both with it, or give it as \"prompt\"");
    example.prompt = messages_between(chosen, 0, common);
    chosen = messages_between(chosen, common, chosen.size());
    rejected = messages_between(rejected, common, rejected.size());
    return;
  }
  const auto a = chosen.get<std::string>();
  const auto b = rejected.get<std::string>();
  const size_t common = common_text(a, b);
  example.prompt = a.substr(0, common);
  chosen = a.substr(common);
  rejected = b.substr(common);
}

void read_pair(LineReading& line,
               const std::string& place,
               bool keeps_whole,
               ExampleLine& example) {
  example.answers = {line.said("chosen"), line.said("rejected")};
  check<ValueError>(example.answers[0].type() == example.answers[1].type(), place,
                    ": \"chosen\" is a JSON ", example.answers[0].type_name(),
                    ", \"rejected\" a JSON ", example.answers[1].type_name(),
                    "; both are texts, or both are messages");
  if (line.has("prompt")) {
    example.prompt = line.said("prompt");
  }
  // A text beside conversations says what they begin with once more.
  const bool inside =
      example.prompt.is_null() || (example.prompt.is_string() && example.answers[0].is_array());
  if (inside) {
    example.prompt = nullptr;
    if (!keeps_whole) {
      take_prompt_out(example, place);
    }
  }
}

// A conversation whose last message is what the assistant says.
void read_conversation(LineReading& line, const std::string& place, ExampleLine& example) {
  const Json messages = line.said("messages");
  check<ValueError>(messages.size() > 1 && messages.back()["role"] == "assistant", place,
                    ": \"messages\" does not end with an answer (role \"assistant\") to others");
  example.prompt = messages_between(messages, 0, messages.size() - 1);
  example.answers = {messages_between(messages, messages.size() - 1, messages.size())};
}

}  // namespace

const char* columns_of(ExampleFormat format) {
  switch (format) {
    case ExampleFormat::kPreference:
      return "\"prompt\", \"chosen\" and \"rejected\" as texts or as messages (or \"chosen\" and "
             "\"rejected\" that begin with the prompt)";
    case ExampleFormat::kUnpaired:
      return "\"prompt\", \"completion\" and \"label\" (true or false), or \"chosen\" and "
             "\"rejected\"";
    case ExampleFormat::kReward:
      return "\"chosen\" and \"rejected\", perhaps \"prompt\" and \"margin\"";
    case ExampleFormat::kCompletion:
      return "\"prompt\" and \"completion\", or \"messages\"";
    case ExampleFormat::kPrompt:
      return "\"prompt\", a text or messages";
  }
  return "";
}

ExampleLine parse_example_line(const std::string& text,
                               const std::string& place,
                               ExampleFormat format) {
  LineReading line(data::parse_json_line(text, place, kMaxNesting), place, format);
  ExampleLine example;
  if (format == ExampleFormat::kPrompt) {
    example.object = line.object().dump();
  }
  example.variables = line.variables();
  const bool is_paired = line.has("chosen") || line.has("rejected");
  switch (format) {
    case ExampleFormat::kReward:
      example.margin = line.number("margin");
      read_pair(line, place, /*keeps_whole=*/true, example);
      break;
    case ExampleFormat::kPreference:
      read_pair(line, place, /*keeps_whole=*/false, example);
      break;
    case ExampleFormat::kUnpaired:
      if (is_paired && !line.has("completion")) {
        read_pair(line, place, /*keeps_whole=*/false, example);
        break;
      }
      example.label = line.truth("label");
      [[fallthrough]];
    case ExampleFormat::kCompletion:
      if (format == ExampleFormat::kCompletion && line.has("messages") && !line.has("prompt")) {
        read_conversation(line, place, example);
        break;
      }
      example.prompt = line.said("prompt");
      example.answers = {line.said("completion")};
      break;
    case ExampleFormat::kPrompt:
      example.prompt = line.said("prompt");
      break;
  }
  example.is_conversation =
      example.prompt.is_array() || (!example.answers.empty() && example.answers[0].is_array());
  for (const Json& answer : example.answers) {
    check<ValueError>(example.prompt.is_null() || example.prompt.type() == answer.type(), place,
                      ": \"prompt\" is a JSON ", example.prompt.type_name(),
                      ", what answers it a JSON ", answer.type_name(),
                      "; both are texts, or both are messages");
  }
  return example;
}

}  // namespace tapestry::post_training

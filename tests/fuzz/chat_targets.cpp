// Templates of conversations, with what they are rendered with.
#include <array>
#include <fstream>
#include <iterator>
#include <string>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "tests/fuzz/targets.h"
#include "text/chat/chat_format.h"

namespace tapestry::fuzz {

namespace {

constexpr chat::RenderLimits kLimits = {.steps = 2000, .bytes = 8192};

// Folders with "=== chat_template.jinja", "=== tokenizer_config.json", "=== variables.json"; what
// is no bundle is a template.
void put_chat(InputFolder& folder, std::string_view input) {
  if (input.starts_with("=== ")) {
    folder.put_bundle(input);
  } else {
    folder.put("chat_template.jinja", input);
  }
}

chat::Json variables_in(const InputFolder& folder) {
  std::ifstream file(folder.file("variables.json"), std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  chat::Json json = chat::Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) {
    return json;
  }
  return {{"messages",
           {{{"role", "system"}, {"content", " Be brief. "}},
            {{"role", "user"}, {"content", "é 1 < 2\n"}},
            {{"role", "assistant"},
             {"content", nullptr},
             {"tool_calls", {{{"name", "f"}, {"arguments", {{"x", 1.5}, {"y", {true, -7}}}}}}}}}},
          {"add_generation_prompt", true},
          {"tools", {{{"name", "f"}, {"parameters", {{"type", "object"}}}}}}};
}

void read_chat(const InputFolder& folder) {
  const auto format = chat::read_chat_format(folder.path());
  if (!format) {
    return;
  }
  const chat::Json variables = variables_in(folder);
  const std::string text = format->chat_template->render(variables, kLimits);
  must_hold(text.size() <= static_cast<size_t>(kLimits.bytes), "a text is longer than it may be");
  must_hold(text == format->chat_template->render(variables, kLimits),
            "a text depends on what was rendered before");
  // A text that is no UTF-8 could be no JSON.
  chat::Json(text).dump();
}

// A tree takes more than its text: `{{a}}` is a statement and an expression.
constexpr std::array kChatTargets = {Target{"chat_template", put_chat, read_chat, 512}};

}  // namespace

std::span<const Target> chat_targets() { return kChatTargets; }

}  // namespace tapestry::fuzz

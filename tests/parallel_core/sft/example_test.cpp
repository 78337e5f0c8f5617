#include "parallel_core/sft/example.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "tests/parallel_core/data/temp_dir.h"

namespace tapestry::sft {
namespace {

Example parsed(std::string_view line) { return parse_example(line, "FILE:7"); }

TEST(ParseExample, EachKind) {
  const Example prompt = parsed(R"({"id": 3, "prompt": "a", "completion": "", "messages": null})");
  EXPECT_EQ(prompt.kind, ExampleKind::kPrompt);
  EXPECT_EQ(prompt.prompt, "a");
  EXPECT_EQ(prompt.completion, "");
  const Example text = parsed("{\"text\": \"caf\\u00e9\"}\r\n");
  EXPECT_EQ(text.kind, ExampleKind::kText);
  EXPECT_EQ(text.completion, "caf\xC3\xA9");
  const Example chat = parsed(
      R"({"messages": [{"role": "user", "content": "x"},
          {"role": "assistant", "content": null, "tool_calls": [{"z": 1, "a": 2}]}],
          "tools": [{"name": "f"}]})");
  EXPECT_EQ(chat.kind, ExampleKind::kMessages);
  EXPECT_EQ(chat.messages.size(), 2U);
  EXPECT_EQ(chat.messages[1]["tool_calls"].dump(), R"([{"z":1,"a":2}])");  // in this order
  EXPECT_EQ(chat.tools.size(), 1U);
  EXPECT_TRUE(parsed(R"({"messages": [{"role": "user"}], "tools": null})").tools.is_null());
}

TEST(ParseExample, WrongLinesAreRefusedWithTheirPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {"{", "is not valid JSON in UTF-8"},
      {"{\"text\": \"\xFF\"}", "is not valid JSON in UTF-8"},
      {R"({"text": "\ud800"})", "is not valid JSON in UTF-8"},
      {"[1]", "is a JSON array, expected an object"},
      {"\"text\"", "is a JSON string, expected an object"},
      {"{}", "has none of"},
      {R"({"content": "x"})", "has none of"},
      {R"({"text": "a", "prompt": "b", "completion": "c"})", "more than one"},
      {R"({"text": "a", "messages": []})", "more than one"},
      {R"({"prompt": "b"})", "\"completion\" is a JSON null, expected a string"},
      {R"({"completion": "b"})", "\"prompt\" is a JSON null, expected a string"},
      {R"({"prompt": 3, "completion": "c"})", "\"prompt\" is a JSON number"},
      {R"({"prompt": [], "completion": []})", "is written whole, with its answers"},
      {R"({"text": {}})", "\"text\" is a JSON object"},
      {R"({"messages": "hi"})", "\"messages\" is a JSON string, expected an array"},
      {R"({"messages": []})", "\"messages\" is empty"},
      {R"({"messages": ["hi"]})", "messages[0] is a JSON string"},
      {R"({"messages": [{"content": "x"}]})", "messages[0].role is missing"},
      {R"({"messages": [{"role": 1}]})", "messages[0].role is a JSON number"},
      {R"({"messages": [{"role": "user", "content": 1}]})", "messages[0].content is a JSON number"},
      {R"({"messages": [{"role": "user", "content": "x"}], "tools": {}})",
       "\"tools\" is a JSON object"},
      {R"({"text": "x", "tools": []})", "\"tools\" without \"messages\""},
  };
  for (const auto& [line, said] : cases) {
    EXPECT_ERROR(parsed(line), ValueError, said) << line;
    EXPECT_ERROR(parsed(line), ValueError, "FILE:7: ") << line;
  }
}

TEST(ParseExample, NestingIsBounded) {
  const auto nested = [](int depth) {
    const auto times = static_cast<size_t>(depth);
    return R"({"messages": [{"role": "user", "content": "x", "extra": )" + std::string(times, '[') +
           std::string(times, ']') + "}]}";
  };
  EXPECT_NO_THROW(parsed(nested(kMaxNesting - 5)));
  EXPECT_ERROR(parsed(nested(kMaxNesting + 5)), ValueError, "nests arrays and objects more than");
  EXPECT_ERROR(parsed(std::string(1'000'000, '[')), ValueError, "FILE:7: ");
}

}  // namespace
}  // namespace tapestry::sft

#include "parallel_core/sft/example.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::sft {
namespace {

Example parsed(const std::string& line) { return parse_example(line, "FILE:7"); }

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
      {"{", "not end on its line"},
      {"{\"text\": \"\xFF\"}", "is not valid UTF-8"},
      {R"({"text": "\ud800"})", "pair of surrogates"},
      {R"({"prompt": "\udc00", "completion": "x"})", "pair of surrogates"},
      {R"({"messages": [{"role": "user", "content": "\ud83dx"}]})", "pair of surrogates"},
      {"{'text': 'x'}", "double quotes"},
      {"[{\"text\": \"x\"},", "jq -c '.[]' FILE > NEW.jsonl"},
      {R"({"text": "a" "b"})", "is not valid JSON: unexpected at byte 16, in "},
      {"[1]", "is a JSON array, expected an object"},
      {"\"text\"", "is a JSON string, expected an object"},
      {"{}", "has none of"},
      {R"({"content": "x"})", "has none of"},
      {R"({"text": "a", "prompt": "b", "completion": "c"})", "more than one"},
      {R"({"text": "a", "messages": []})", "more than one"},
      {R"({"prompt": "b"})", "\"completion\" is a JSON null, expected a string"},
      {R"({"completion": "b"})", "\"prompt\" is a JSON null, expected a string"},
      {R"({"prompt": 3, "completion": "c"})", "\"prompt\" is a JSON number"},
      {R"({"prompt": [], "completion": []})", "whole, with its answers"},
      {R"({"text": {}})", "\"text\" is a JSON object"},
      {R"({"messages": "hi"})", "\"messages\" is a JSON string, expected an array"},
      {R"({"messages": []})", "\"messages\" is empty"},
      {R"({"messages": ["hi"]})", "messages[0] is a JSON string"},
      {R"({"messages": [{"content": "x"}]})", "messages[0].role is missing"},
      {R"({"messages": [{"role": 1}]})", "messages[0].role is a JSON number"},
      {R"({"messages": [{"role": "user", "content": 1}]})", "messages[0].content is a JSON number"},
      {R"({"messages": [{"role": "user", "content": "x"}], "tools": {}})",
       "\"tools\" is a JSON object"},
      {R"({"instruction": "x"})", "has none of"},
      {R"({"instruction": 1, "output": "y"})", "\"instruction\" is a JSON number"},
      {R"({"instruction": "x", "output": "y", "input": 3})", "\"input\" is a JSON number"},
      {R"({"instruction": "x", "output": "y", "history": [["q"]]})", "not [question, answer]"},
      {R"({"conversations": []})", "\"conversations\" is empty"},
      {R"({"conversations": [{"from": "narrator", "value": "x"}]})", ".from is \"narrator\""},
      {R"({"conversations": [{"from": "human"}]})", "\"value\" is a JSON null"},
      {R"({"conversations": [3]})", "conversations[0] is a JSON number"},
      {R"({"text": "x", "tools": []})", "\"tools\" ... without ... \"messages\""},
  };
  for (const auto& [line, said] : cases) {
    EXPECT_ERROR(parsed(line), ValueError, said) << line;
    EXPECT_ERROR(parsed(line), ValueError, "FILE:7: ") << line;
  }
}

TEST(ParseExample, AlpacaAndShareGptBecomeMessages) {
  const Example alpaca = parsed(R"({"instruction": "Add.", "input": "1 2", "output": "3"})");
  EXPECT_EQ(alpaca.kind, ExampleKind::kMessages);
  EXPECT_EQ(alpaca.messages, Json::parse(R"([{"role": "user", "content": "Add.\n\n1 2"},
                                             {"role": "assistant", "content": "3"}])"));
  const Example history = parsed(
      R"({"instruction": "Q", "input": "", "output": "A", "system": "S", "history": [["q", "a"]]})");
  EXPECT_EQ(history.messages, Json::parse(R"([{"role": "system", "content": "S"},
      {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"},
      {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}])"));
  const Example shared = parsed(
      R"({"id": "x", "conversations": [{"from": "system", "value": "S"},
          {"from": "human", "value": "q"}, {"from": "gpt", "value": "a", "weight": 1},
          {"from": "observation", "value": "o"}], "system": null})");
  EXPECT_EQ(shared.kind, ExampleKind::kMessages);
  EXPECT_EQ(shared.messages, Json::parse(R"([{"role": "system", "content": "S"},
      {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"},
      {"role": "tool", "content": "o"}])"));
  // Messages by another name stay what they are.
  EXPECT_EQ(parsed(R"({"conversations": [{"role": "user", "content": "q", "x": 1}]})").messages,
            Json::parse(R"([{"role": "user", "content": "q", "x": 1}])"));
  // Members that belong to none of this may hold what Python writes.
  EXPECT_EQ(
      parsed(R"({"text": "\ud83d\ude00", "score": NaN, "more": [-Infinity, 1e999]})").completion,
      "\xF0\x9F\x98\x80");
  EXPECT_EQ(parsed(R"({"text": "x", "cut": "\ud83d"})").completion, "x");
}

TEST(ParseExample, NestingIsBounded) {
  const auto nested = [](int depth) {
    const auto times = static_cast<size_t>(depth);
    return R"({"messages": [{"role": "user", "content": "x", "extra": )" + std::string(times, '[') +
           std::string(times, ']') + "}]}";
  };
  EXPECT_NO_THROW(parsed(nested(kMaxNesting - 5)));
  EXPECT_ERROR(parsed(nested(kMaxNesting + 5)), ValueError, "objects more than");
  EXPECT_ERROR(parsed(std::string(1'000'000, '[')), ValueError, "FILE:7: ");
}

}  // namespace
}  // namespace tapestry::sft

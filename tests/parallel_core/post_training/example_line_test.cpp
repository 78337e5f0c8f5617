// What lines of TRL's formats say, and what is wrong with others.
#include "parallel_core/post_training/examples/example_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::post_training {
namespace example_line_test {
namespace {

using ::testing::ElementsAre;

ExampleLine parsed(const std::string& line, ExampleFormat format = ExampleFormat::kPreference) {
  return parse_example_line(line, "F:3", format);
}

std::vector<std::string> texts_of(const ExampleLine& line) {
  std::vector<std::string> texts = {line.prompt.is_string() ? line.prompt.get<std::string>()
                                                            : line.prompt.dump()};
  for (const Json& answer : line.answers) {
    texts.push_back(answer.is_string() ? answer.get<std::string>() : answer.dump());
  }
  return texts;
}

TEST(ExampleLine, PairsOfTexts) {
  const ExampleLine line = parsed(R"({"prompt": "p", "chosen": " a", "rejected": " b", "id": 7})");
  EXPECT_FALSE(line.is_conversation);
  EXPECT_THAT(texts_of(line), ElementsAre("p", " a", " b"));
}

TEST(ExampleLine, PromptInsideBothTexts) {
  const auto split = [](const std::string& chosen, const std::string& rejected) {
    return texts_of(parsed(Json({{"chosen", chosen}, {"rejected", rejected}}).dump()));
  };
  // A space at the prompt's end goes to the answers.
  EXPECT_THAT(split("q? yes", "q? no"), ElementsAre("q?", " yes", " no"));
  EXPECT_THAT(split("abX", "abY"), ElementsAre("ab", "X", "Y"));
  EXPECT_THAT(split("X", "Y"), ElementsAre("", "X", "Y"));
  EXPECT_THAT(split("X ", "Y "), ElementsAre("", "X ", "Y "));
  // Where one begins the other the last letter is the answer's.
  EXPECT_THAT(split("ab", "abc"), ElementsAre("a", "b", "bc"));
  EXPECT_THAT(split("same", "same"), ElementsAre("sam", "e", "e"));
  EXPECT_THAT(split("", "abc"), ElementsAre("", "", "abc"));
  // Letters are not divided: these two share their first byte.
  EXPECT_THAT(split("zä", "zö"), ElementsAre("z", "ä", "ö"));
  EXPECT_THAT(split("zä", "zä"), ElementsAre("z", "ä", "ä"));
}

TEST(ExampleLine, Conversations) {
  const std::string user = R"({"role":"user","content":"q"})";
  const std::string yes = R"({"role":"assistant","content":"yes"})";
  const std::string no = R"({"role":"assistant","content":"no"})";
  const std::string apart =
      R"({"prompt": [)" + user + R"(], "chosen": [)" + yes + R"(], "rejected": [)" + no + "]}";
  const std::string inside =
      R"({"chosen": [)" + user + "," + yes + R"(], "rejected": [)" + user + "," + no + "]}";
  const std::string twice = R"({"prompt": "q", "chosen": [)" + user + "," + yes +
                            R"(], "rejected": [)" + user + "," + no + "]}";
  for (const std::string& line : {apart, inside, twice}) {
    const ExampleLine example = parsed(line);
    EXPECT_TRUE(example.is_conversation) << line;
    EXPECT_THAT(texts_of(example), ElementsAre("[" + user + "]", "[" + yes + "]", "[" + no + "]"))
        << line;
  }
  const ExampleLine same = parsed(R"({"chosen": [)" + user + "," + yes + R"(], "rejected": [)" +
                                  user + "," + yes + "]}");
  EXPECT_THAT(texts_of(same), ElementsAre("[" + user + "]", "[" + yes + "]", "[" + yes + "]"));
  EXPECT_ERROR(parsed(R"({"chosen": [)" + yes + R"(], "rejected": [)" + no + "]}"), ValueError,
               "F:3 ... no message in common ... \"prompt\"");
  const ExampleLine messages =
      parsed(R"({"messages": [)" + user + "," + yes + "]}", ExampleFormat::kCompletion);
  EXPECT_THAT(texts_of(messages), ElementsAre("[" + user + "]", "[" + yes + "]"));
  EXPECT_ERROR(parsed(R"({"messages": [)" + user + "]}", ExampleFormat::kCompletion), ValueError,
               "F:3 ... \"messages\" ... answer");
}

TEST(ExampleLine, WhatTemplatesAreTold) {
  const ExampleLine line = parsed(
      R"({"prompt": "p", "tools": "[{\"name\": \"f\"}]", "chat_template_kwargs": {"think": false}})",
      ExampleFormat::kPrompt);
  EXPECT_EQ(line.variables.dump(), R"({"think":false,"tools":[{"name":"f"}]})");
  EXPECT_ERROR(parsed(R"({"prompt": "p", "tools": {}})", ExampleFormat::kPrompt), ValueError,
               "F:3 ... \"tools\" ... array");
}

TEST(ExampleLine, UnpairedExamples) {
  const ExampleLine good =
      parsed(R"({"prompt": "p", "completion": "c", "label": true})", ExampleFormat::kUnpaired);
  EXPECT_EQ(good.label, true);
  EXPECT_THAT(texts_of(good), ElementsAre("p", "c"));
  const ExampleLine pair =
      parsed(R"({"prompt": "p", "chosen": "a", "rejected": "b"})", ExampleFormat::kUnpaired);
  EXPECT_FALSE(pair.label.has_value());
  EXPECT_THAT(texts_of(pair), ElementsAre("p", "a", "b"));
  EXPECT_ERROR(
      parsed(R"({"prompt": "p", "completion": "c", "label": "good"})", ExampleFormat::kUnpaired),
      ValueError, "F:3 ... \"label\" is \"good\" ... true");
  EXPECT_ERROR(parsed(R"({"prompt": "p", "completion": "c"})", ExampleFormat::kUnpaired),
               ValueError, "F:3 ... no \"label\"");
}

TEST(ExampleLine, RewardsKeepThePromptInside) {
  const ExampleLine line =
      parsed(R"({"chosen": "q yes", "rejected": "q no", "margin": 0.5})", ExampleFormat::kReward);
  EXPECT_TRUE(line.prompt.is_null());
  EXPECT_EQ(line.margin, 0.5);
  EXPECT_EQ(line.answers[0], "q yes");
  EXPECT_ERROR(
      parsed(R"({"chosen": "a", "rejected": "b", "margin": "big"})", ExampleFormat::kReward),
      ValueError, "F:3 ... \"margin\" is \"big\" ... number");
}

TEST(ExampleLine, PromptsKeepTheirLine) {
  const ExampleLine line =
      parsed(R"({"prompt": "p",  "answer": 42, "label": null})", ExampleFormat::kPrompt);
  EXPECT_EQ(line.object, R"({"prompt":"p","answer":42,"label":null})");
  EXPECT_TRUE(line.answers.empty());
}

TEST(ExampleLine, FaultsAreNamed) {
  EXPECT_ERROR(parsed("[1]"), ValueError, "F:3");
  EXPECT_ERROR(parsed(R"({"prompt": "p", "chosen": "a"})"), ValueError,
               "F:3 ... no \"rejected\" ... \"prompt\", \"chosen\" and \"rejected\"");
  EXPECT_ERROR(parsed(R"({"prompt": "p", "chosen": 3, "rejected": "b"})"), ValueError,
               "F:3 ... \"chosen\" is a JSON number");
  EXPECT_ERROR(parsed(R"({"prompt": "p", "chosen": "a", "rejected": [{"role": "assistant"}]})"),
               ValueError, "F:3 ... \"chosen\" is a JSON string ... array");
  EXPECT_ERROR(parsed(R"({"prompt": [{"role": "user"}], "chosen": "a", "rejected": "b"})"),
               ValueError, "F:3 ... \"prompt\" is a JSON array ... string");
  EXPECT_ERROR(parsed(R"({"prompt": [], "chosen": "a", "rejected": "b"})"), ValueError,
               "F:3 ... \"prompt\" is empty");
  EXPECT_ERROR(parsed(R"({"prompt": [{"content": "x"}], "chosen": "a", "rejected": "b"})"),
               ValueError, "F:3 ... prompt[0].role");
  EXPECT_ERROR(parsed(R"({"prompt": [{"role": "user", "content": 3}], "chosen": "a"})"), ValueError,
               "F:3 ... ");
}

}  // namespace
}  // namespace example_line_test
}  // namespace tapestry::post_training

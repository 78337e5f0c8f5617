#include "parallel_core/scoring/multiple_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "autograd/tensor/error.h"
#include "tests/message_of.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ChoiceQuestions, AreReadFromLines) {
  const data::TempDir dir;
  dir.write("q.jsonl",
            "{\"prompt\": \"2+2=\", \"choices\": [\"4\", \"5\"], \"answer\": 0, \"id\": \"x\"}\n"
            " \r\n{\"prompt\": \"\", \"choices\": [\"a\", \"b\", \"\\u00e9\"], \"answer\": 2}");
  const auto questions = read_choice_questions(dir.file("q.jsonl"));
  ASSERT_EQ(questions.size(), 2U);
  EXPECT_EQ(questions[0].prompt, "2+2=");
  EXPECT_THAT(questions[0].choices, ElementsAre("4", "5"));
  EXPECT_EQ(questions[0].answer, 0);
  EXPECT_EQ(questions[1].place, dir.file("q.jsonl") + ":3");
  EXPECT_THAT(questions[1].choices, ElementsAre("a", "b", "é"));
}

TEST(ChoiceQuestions, NameFileAndLineOfWhatIsWrong) {
  const data::TempDir dir;
  const auto failure = [&](const std::string& line) {
    dir.write("q.jsonl",
              "{\"prompt\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 1}\n" + line + "\n");
    return message_of<ValueError>([&] { read_choice_questions(dir.file("q.jsonl")); });
  };
  EXPECT_THAT(failure("{"), HasSubstr("q.jsonl:2: is no JSON object"));
  EXPECT_THAT(failure("[]"), HasSubstr("q.jsonl:2: is no JSON object"));
  EXPECT_THAT(failure(R"({"choices": ["a", "b"], "answer": 0})"), HasSubstr("no text \"prompt\""));
  EXPECT_THAT(failure(R"({"prompt": "", "choices": ["a"], "answer": 0})"),
              HasSubstr("at least two texts"));
  EXPECT_THAT(failure(R"({"prompt": "", "choices": ["a", ""], "answer": 0})"),
              HasSubstr("choice 1 is \"\""));
  EXPECT_THAT(failure(R"({"prompt": "", "choices": ["a", 3], "answer": 0})"),
              HasSubstr("choice 1 is 3"));
  EXPECT_THAT(failure(R"({"prompt": "", "choices": ["a", "b"], "answer": 0.5})"),
              HasSubstr("no integer \"answer\""));
  EXPECT_THAT(failure(R"({"prompt": "", "choices": ["a", "b"], "answer": 2})"),
              HasSubstr("\"answer\" is 2, expected 0 to 1"));
  EXPECT_THAT(failure(R"({"prompt": "", "choices": ["a", "b"], "answer": -1})"),
              HasSubstr("\"answer\" is -1"));
  dir.write("q.jsonl", "\n");
  EXPECT_THAT(message_of<ValueError>([&] { read_choice_questions(dir.file("q.jsonl")); }),
              HasSubstr("has no questions"));
  EXPECT_THROW(read_choice_questions(dir.file("none.jsonl")), IoError);
}

}  // namespace
}  // namespace tapestry

// What is read beside weights, and prompts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/inference/generation_config.h"
#include "parallel_core/inference/prompt_lines.h"
#include "tests/message_of.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;

class InferenceFiles : public ::testing::Test {
 protected:
  SuggestedSampling config(const std::string& text) {
    dir_.write("generation_config.json", text);
    return read_generation_config(dir_.path());
  }
  std::vector<PromptLine> lines(const std::string& text) {
    dir_.write("p.jsonl", text);
    return read_prompt_lines(dir_.file("p.jsonl"));
  }
  data::TempDir dir_;
};

TEST_F(InferenceFiles, Suggestions) {
  EXPECT_EQ(read_generation_config(dir_.path()).file, "");
  const SuggestedSampling found = config(
      R"({"eos_token_id": [7, 9], "temperature": 0.6, "top_p": 0.9, "top_k": 50, "min_p": null,
          "do_sample": true, "repetition_penalty": 1.1, "pad_token_id": 0, "new": {"a": [1]}})");
  EXPECT_EQ(found.eos_token_ids, (std::vector<int32_t>{7, 9}));
  EXPECT_EQ(found.describe(), "temperature 0.6, top_k 50, top_p 0.9, repetition_penalty 1.1");
  GenerationOptions options = {.max_new_tokens = 5, .top_p = 0.5};
  found.apply_to(options);
  EXPECT_EQ(options.temperature, 0.6);
  EXPECT_EQ(options.top_k, 50);
  EXPECT_EQ(options.top_p, 0.9);
  EXPECT_EQ(options.repetition_penalty, 1.1);
  EXPECT_EQ(options.max_new_tokens, 5);
  config(R"({"do_sample": false, "temperature": 0.6})").apply_to(options);
  EXPECT_EQ(options.temperature, 0);
  EXPECT_EQ(config(R"({"eos_token_id": 7})").eos_token_ids, std::vector<int32_t>{7});
  EXPECT_EQ(config(R"({"eos_token_id": 7})").describe(), "");
}

TEST_F(InferenceFiles, BadSuggestions) {
  for (const auto& [text, part] :
       {std::pair{R"({"temperature": "hot"})", "temperature is \"hot\", expected a number"},
        std::pair{R"({"top_k": 1.5})", "top_k is 1.5, expected an integer"},
        std::pair{R"({"do_sample": 1})", "do_sample is 1, expected true or false"},
        std::pair{R"({"top_p": 3})", "top_p must lie in (0, 1], got 3"},
        std::pair{R"({"eos_token_id": -1})", "eos_token_id is -1"},
        std::pair{R"({"eos_token_id": [1, "a"]})", "eos_token_id is [1,\"a\"]"},
        std::pair{R"({"eos_token_id": 1e12})", "eos_token_id is"}}) {
    EXPECT_THAT(message_of<ValueError>([&] { config(text); }), HasSubstr(part));
  }
  EXPECT_THROW(config("[1]"), IoError);
  EXPECT_THROW(config("{"), IoError);
}

TEST_F(InferenceFiles, Prompts) {
  const std::vector<PromptLine> found = lines(
      "{\"prompt\": \"a\", \"seed\": 3, \"id\": {\"x\": 1}, \"completion\": \"b\"}\n\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"c\"}], \"tools\": [], "
      "\"max_new_tokens\": 4}\r\n");
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].prompt, "a");
  EXPECT_EQ(found[0].seed, 3);
  EXPECT_EQ(found[0].id->dump(), "{\"x\":1}");
  EXPECT_EQ(found[0].messages, nullptr);
  EXPECT_EQ(found[1].line, 3);
  EXPECT_EQ(found[1].prompt, std::nullopt);
  EXPECT_EQ(found[1].messages->size(), 1U);
  EXPECT_NE(found[1].tools, nullptr);
  EXPECT_EQ(found[1].max_new_tokens, 4);
}

TEST_F(InferenceFiles, BadPrompts) {
  for (const auto& [text, part] :
       {std::pair{"{\"prompt\": \"a\"}\n[1]\n", "p.jsonl:2: is no JSON object"},
        std::pair{"{\"prompt\": \"a\"", "p.jsonl:1: is no JSON object"},
        std::pair{"{}", "p.jsonl:1: has neither"},
        std::pair{"{\"prompt\": \"a\", \"messages\": []}", "has both"},
        std::pair{"{\"prompt\": 1}", "\"prompt\" is no text"},
        std::pair{"{\"prompt\": \"\"}", "\"prompt\" is empty"},
        std::pair{"{\"messages\": {}}", "\"messages\" is no list"},
        std::pair{"{\"prompt\": \"a\", \"seed\": -1}", "\"seed\" is -1"},
        std::pair{"{\"prompt\": \"a\", \"seed\": 1.5}", "\"seed\" is 1.5"},
        std::pair{"\n\n", "has no prompts"}}) {
    EXPECT_THAT(message_of<ValueError>([&] { lines(text); }), HasSubstr(part));
  }
  EXPECT_THROW(read_prompt_lines(dir_.file("none")), IoError);
}

}  // namespace
}  // namespace tapestry

// The program `generate`: prompts from words and files, text, JSON, what ends a text, precisions.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/examples/gpt/hf_folders.h"
#include "tests/says.h"

namespace tapestry::hf_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class GenerateTest : public HfTest {
 protected:
  void SetUp() override {
    write_llama("llama", "llama");
    dir_.write("p.jsonl",
               "{\"prompt\": \"And the king\", \"id\": 7}\n\n{\"prompt\": \"looked\"}\n"
               "{\"prompt\": \"the servant went up to the m\", \"seed\": 5, "
               "\"max_new_tokens\": 3}\n");
  }
  // The JSON lines that the program prints.
  std::vector<Json> answers(const std::string& arguments) {
    EXPECT_EQ(generate("--checkpoint llama " + arguments), 0) << said();
    std::vector<Json> out;
    std::istringstream lines(out_);
    for (std::string line; std::getline(lines, line);) {
      out.push_back(Json::parse(line));
    }
    return out;
  }
  static std::vector<Json> tokens(const std::vector<Json>& answers) {
    std::vector<Json> out;
    for (const Json& answer : answers) {
      out.push_back(answer.at("tokens"));
    }
    return out;
  }
  void expect_bad(const std::string& arguments, const std::string& part) {
    EXPECT_EQ(generate("--checkpoint llama " + arguments), 2) << said();
    EXPECT_THAT(err_, Says(part));
    EXPECT_EQ(out_, "");
  }
};

TEST_F(GenerateTest, PromptsFromAFile) {
  const std::vector<Json> found = answers("--prompts p.jsonl --max_new_tokens 8 --seed 3");
  ASSERT_EQ(found.size(), 3U);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].at("index"), i);
    EXPECT_EQ(found[i].at("tokens").size(), i == 2 ? 3U : 8U);
    EXPECT_EQ(found[i].at("finish_reason"), "length");
    EXPECT_EQ(found[i].at("prompt_tokens"), found[i].at("prompt").get<std::string>().size());
  }
  EXPECT_EQ(found[0].at("id"), 7);
  EXPECT_FALSE(found[1].contains("id"));
  // The batch, the cache and the size of the passes have no effect, and each prompt its own seed.
  for (const char* other : {"--no_cache", "--batch_size 1", "--batch_size 2 --prefill_tokens 3"}) {
    EXPECT_EQ(answers(std::string("--prompts p.jsonl --max_new_tokens 8 --seed 3 ") + other),
              found);
  }
  EXPECT_EQ(answers("--prompt looked --json --max_new_tokens 8 --seed 4")[0].at("tokens"),
            found[1].at("tokens"));
  EXPECT_EQ(
      answers("--prompt 'the servant went up to the m' --json --max_new_tokens 3 --seed 5")[0].at(
          "tokens"),
      found[2].at("tokens"));
}

TEST_F(GenerateTest, TextOfSeveralPrompts) {
  const std::string ask = " --max_new_tokens 6 --temperature 0";
  ASSERT_EQ(generate("--checkpoint llama --prompt And" + ask), 0) << said();
  const std::string first = out_;
  EXPECT_EQ(first.find("And"), 0U);
  ASSERT_EQ(generate("--checkpoint llama --prompt And --stream" + ask), 0) << said();
  EXPECT_EQ(out_, first);
  ASSERT_EQ(generate("--checkpoint llama --prompt king" + ask), 0) << said();
  const std::string second = out_;
  ASSERT_EQ(generate("--checkpoint llama --prompt And --prompt king" + ask), 0) << said();
  EXPECT_EQ(out_, first + "\n" + second);
}

TEST_F(GenerateTest, StopStringsAndIds) {
  const std::string ask = "--prompt And --json --max_new_tokens 12 --temperature 0 ";
  const Json whole = answers(ask)[0];
  // A byte that the text has; bytes are tokens here.
  const auto ids = whole.at("tokens").get<std::vector<int>>();
  const auto at = std::find_if(ids.begin() + 1, ids.end(), [](int id) {
    return id > ' ' && id < 127 && id != '\'' && id != '\\';
  });
  ASSERT_NE(at, ids.end()) << whole;
  const auto first = std::find(ids.begin(), ids.end(), *at);
  const std::string stop(1, static_cast<char>(*at));
  const Json stopped = answers(ask + "--stop absent --stop '" + stop + "'")[0];
  EXPECT_EQ(stopped.at("finish_reason"), "stop_string");
  EXPECT_EQ(stopped.at("stop"), stop);
  EXPECT_EQ(stopped.at("tokens").size(), static_cast<size_t>(first - ids.begin()) + 1);
  EXPECT_THAT(stopped.at("text").get<std::string>(), Not(Says(stop)));
  // The same byte as an id that ends texts, one of several.
  dir_.write("llama/generation_config.json",
             Json{{"eos_token_id", {256, *at}}, {"temperature", 0.7}}.dump());
  const Json ended = answers(ask)[0];
  EXPECT_EQ(ended.at("finish_reason"), "stop_id");
  EXPECT_EQ(ended.at("tokens").size(), static_cast<size_t>(first - ids.begin()));
  EXPECT_THAT(err_, Says("suggests temperature ... 0.7; --use_generation_config"));
}

TEST_F(GenerateTest, SuggestionsAreTakenWhereTheyAreAskedFor) {
  dir_.write("llama/generation_config.json",
             Json{{"do_sample", false}, {"max_new_tokens", 4}}.dump());
  const std::string ask = "--prompt And --json ";
  const auto greedy = tokens(answers(ask + "--max_new_tokens 4 --temperature 0"));
  EXPECT_EQ(tokens(answers(ask + "--use_generation_config --seed 8")), greedy);
  EXPECT_EQ(tokens(answers(ask + "--use_generation_config --max_new_tokens 2"))[0].size(), 2U);
  EXPECT_EQ(tokens(answers(ask + "--use_generation_config --temperature 2 --seed 8")),
            tokens(answers(ask + "--max_new_tokens 4 --temperature 2 --seed 8")));
  dir_.write("llama/generation_config.json", "{\"temperature\": -1}");
  expect_bad("--prompt And", "llama/generation_config.json: temperature ... negative");
  std::filesystem::remove(dir_.file("llama/generation_config.json"));
  expect_bad("--prompt And --use_generation_config", "there is no ... generation_config.json");
}

TEST_F(GenerateTest, LogProbabilities) {
  const Json found =
      answers("--prompt And --json --logprobs 2 --max_new_tokens 5 --temperature 0")[0];
  ASSERT_EQ(found.at("logprobs").size(), 5U);
  for (size_t i = 0; i < 5; ++i) {
    const Json& token = found.at("logprobs")[i];
    EXPECT_EQ(token.at("id"), found.at("tokens")[i]);
    ASSERT_EQ(token.at("top").size(), 2U);
    EXPECT_EQ(token.at("top")[0].at("id"), token.at("id"));  // the likeliest was taken
    EXPECT_EQ(token.at("top")[0].at("logprob"), token.at("logprob"));
    EXPECT_LT(token.at("logprob").get<double>(), 0);
  }
  EXPECT_FALSE(answers("--prompt And --json --max_new_tokens 1")[0].contains("logprobs"));
}

TEST_F(GenerateTest, TheContext) {
  const std::string ask = "--prompt And --json --temperature 0 --max_new_tokens 50 ";
  EXPECT_EQ(answers(ask)[0].at("tokens").size(), 50U);  // the model has 32 positions
  const Json stopped = answers(ask + "--stop_at_context")[0];
  EXPECT_EQ(stopped.at("finish_reason"), "context");
  EXPECT_EQ(stopped.at("tokens").size(), 29U);
  EXPECT_EQ(answers(ask + "--stop_at_context --context 10")[0].at("tokens").size(), 7U);
}

TEST_F(GenerateTest, Precisions) {
  const std::string ask = "--prompt And --json --logprobs 0 --temperature 0 --max_new_tokens 1 ";
  const double exact = answers(ask)[0].at("logprobs")[0].at("logprob");
  EXPECT_EQ(answers(ask + "--dtype float32")[0].at("logprobs")[0].at("logprob"), exact);
  const double rounded = answers(ask + "--dtype bfloat16")[0].at("logprobs")[0].at("logprob");
  EXPECT_NE(rounded, exact);
  EXPECT_NEAR(rounded, exact, 0.05);
  expect_bad("--prompt And --dtype float8", "dtype is 'float8', expected float32");
  expect_bad("--prompt And --dtype q8_0", "16 numbers of a row ... blocks");
}

TEST_F(GenerateTest, Conversations) {
  dir_.write("llama/chat_template.jinja",
             "{% for m in messages %}{{ m.role[0] }}{{ m.content }}|{% endfor %}"
             "{% if add_generation_prompt %}a{% endif %}");
  const std::string ask = "--chat --max_new_tokens 3 --temperature 0 ";
  const Json found = answers(ask + "--json --prompt Hello")[0];
  const std::string rendered = "uHello|a";
  EXPECT_EQ(found.at("prompt_tokens"), rendered.size());
  EXPECT_EQ(found.at("tokens"),
            answers("--json --max_new_tokens 3 --temperature 0 --prompt '" + rendered + "'")[0].at(
                "tokens"));
  EXPECT_EQ(answers(ask + "--json --system Be --prompt Hello")[0].at("prompt_tokens"),
            rendered.size() + std::string("sBe|").size());
  dir_.write("chats.jsonl", R"({"messages": [{"role": "user", "content": "Hello"}]})"
                            "\n");
  EXPECT_EQ(answers("--prompts chats.jsonl --max_new_tokens 3 --temperature 0")[0].at("tokens"),
            found.at("tokens"));
  // Lines of the input are what the user says; each answer is in the next prompt.
  ASSERT_EQ(generate("--checkpoint llama " + ask + "--prompt Hello"), 0) << said();
  const std::string first = out_;
  dir_.write("said.txt", "Hello\n\n/reset\nHello\nand\n");
  ASSERT_EQ(run("sh", "-c \"" TAPESTRY_GENERATE " --checkpoint llama " + ask + "< said.txt\""), 0)
      << said();
  EXPECT_EQ(out_.substr(0, 2 * first.size()), first + first);
  EXPECT_GT(out_.size(), 2 * first.size()) << said();
}

// As a tuning on conversations writes it where there is no template.
TEST_F(GenerateTest, ConversationsWithoutATemplateAreChatML) {
  const std::string ask = "--max_new_tokens 3 --temperature 0 ";
  const std::string rendered = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n";
  dir_.write("plain.jsonl", Json{{"prompt", rendered}}.dump() + "\n");
  const Json expected = answers(ask + "--prompts plain.jsonl")[0];
  const Json found = answers(ask + "--json --chat --prompt Hello")[0];
  EXPECT_THAT(err_, HasSubstr("has no chat template"));
  EXPECT_THAT(err_, Says("ChatML ... <|im_end|>"));
  EXPECT_EQ(found.at("prompt_tokens"), rendered.size());
  EXPECT_EQ(found.at("tokens"), expected.at("tokens"));
}

TEST_F(GenerateTest, BadArguments) {
  expect_bad("--prompts none.jsonl", "none.jsonl");
  expect_bad("--prompts p.jsonl --prompt And", "--prompt ... --prompts: ... keep one");
  expect_bad("--prompt And --prompt king --stream", "--stream shows one text");
  expect_bad("--prompt And --json --stream", "--stream and JSON");
  expect_bad("--prompt And --logprobs 2", "add --json");
  expect_bad("--prompt And --json --logprobs -1", "--logprobs ... must not be negative");
  expect_bad("--prompt And --stop ''", "--stop is empty");
  expect_bad("--prompt And --system x", "add --chat");
  expect_bad("--prompt And --min_p 2", "min_p must lie in [0, 1]");
  expect_bad("--prompt And --repetition_penalty 0", "repetition_penalty ... must be positive");
  expect_bad("--prompt And --batch_size 0", "batch_size ... must be positive");
  expect_bad("--prompt And --context 0", "--context ... must be positive");
  expect_bad("--prompt And --threads 0", "--threads ... must be positive");
  expect_bad("--prompt And --adapter none", "none");
  expect_bad("--prompt And --tensor_parallel 2", "2 ... but there are ... 1");
  dir_.write("p.jsonl", "{\"prompt\": 1}\n");
  expect_bad("--prompts p.jsonl", "p.jsonl:1: \"prompt\" is no text");
}

}  // namespace
}  // namespace tapestry::hf_test

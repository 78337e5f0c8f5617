// The program `evaluate`: what it says of texts and choices, in one process and in layouts.
#include <cmath>
#include <numeric>

#include "tests/examples/gpt/hf_folders.h"
#include "tests/says.h"

namespace tapestry::hf_test {
namespace {

using ::testing::DoubleNear;
using ::testing::HasSubstr;

constexpr double kRounding = 2e-4;  // of a sum of log-probabilities in float32

class EvaluateTest : public HfTest {
 protected:
  void SetUp() override {
    write_llama("llama", "llama");
    dir_.write("text.txt", kText);
  }

  int evaluate(const std::string& arguments, int ranks = 1) {
    const std::string program = TAPESTRY_EVALUATE;
    return run(ranks == 1 ? program
                          : std::string(TAPESTRY_MPIEXEC) + " --oversubscribe -n " +
                                std::to_string(ranks) + " " + program,
               "--checkpoint llama --threads 1 " + arguments);
  }
  Json results(const std::string& arguments, int ranks = 1) {
    EXPECT_EQ(evaluate(arguments, ranks), 0) << said();
    return Json::parse(out_).at("results");
  }
  double log_likelihood_of(const std::string& text, const std::string& arguments = "") {
    dir_.write("part.txt", text);
    return results("--text part.txt " + arguments).at(0).at("log_likelihood");
  }
  // Of each choice of one question.
  std::vector<double> choices_of(const std::string& prompt,
                                 const std::vector<std::string>& choices) {
    dir_.write("one.jsonl",
               Json({{"prompt", prompt}, {"choices", choices}, {"answer", 0}}).dump() + "\n");
    return results("--choices one.jsonl --details").at(0).at("details").at(0).at("log_likelihoods");
  }
  void expect_bad(const std::string& arguments, const std::string& part) {
    EXPECT_EQ(evaluate(arguments), 2) << said();
    EXPECT_THAT(err_, Says(part));
    EXPECT_EQ(out_, "");
  }

  static inline const std::string kText =
      "And the king went up to the city, and looked upon the house of his brother.\n";
};

// The tokens are bytes, and nothing stands before the first.
TEST_F(EvaluateTest, PerplexityIsTheMeanOverTokensAndBytes) {
  const Json result = results("--text text.txt --stride 5").at(0);
  const auto scored = std::ssize(kText) - 1;
  EXPECT_EQ(result.at("text"), "text.txt");
  EXPECT_EQ(result.at("tokens"), kText.size());
  EXPECT_EQ(result.at("scored_tokens"), scored);
  EXPECT_EQ(result.at("scored_bytes"), scored);
  EXPECT_EQ(result.at("stride"), 5);
  EXPECT_EQ(result.at("windows"), 1 + (scored - kPositions + 4) / 5);
  const double mean = -result.at("log_likelihood").get<double>() / static_cast<double>(scored);
  EXPECT_GT(mean, 1);
  EXPECT_LT(mean, 20);
  EXPECT_DOUBLE_EQ(result.at("perplexity_per_token").get<double>(), std::exp(mean));
  EXPECT_DOUBLE_EQ(result.at("perplexity_per_byte").get<double>(), std::exp(mean));
  EXPECT_DOUBLE_EQ(result.at("bits_per_byte").get<double>(), mean / std::log(2.0));
}

// A stride of 1: each token behind as many as the model takes, which questions ask for one by one.
TEST_F(EvaluateTest, EveryTokenIsScoredBehindThoseBeforeIt) {
  constexpr size_t kContext = 8;
  const std::string text = kText.substr(0, 24);
  double expected = 0;
  std::string questions;
  for (size_t i = 1; i < text.size(); ++i) {
    const size_t begin = i > kContext ? i - kContext : 0;
    questions += Json({{"prompt", text.substr(begin, i - begin)},
                       {"choices", {text.substr(i, 1), "q"}},
                       {"answer", 0}})
                     .dump() +
                 "\n";
  }
  dir_.write("each.jsonl", questions);
  const Json result = results("--choices each.jsonl --details").at(0);
  for (const Json& question : result.at("details")) {
    expected += question.at("log_likelihoods").at(0).get<double>();
  }
  EXPECT_THAT(log_likelihood_of(text, "--context 8 --stride 1"), DoubleNear(expected, kRounding));
  // Others see less, so their sum is another one.
  EXPECT_GT(std::abs(log_likelihood_of(text, "--context 8 --stride 8") - expected), 0.01);
}

TEST_F(EvaluateTest, AChoiceIsWhatItAddsToItsPrompt) {
  const std::string prompt = "And the king ";
  const std::vector<std::string> choices = {"went up", "looked", "?"};
  const std::vector<double> found = choices_of(prompt, choices);
  const double before = log_likelihood_of(prompt);
  for (size_t i = 0; i < choices.size(); ++i) {
    EXPECT_THAT(found[i], DoubleNear(log_likelihood_of(prompt + choices[i]) - before, kRounding));
  }
}

// Ids of letters are their bytes.
TEST_F(EvaluateTest, TokensHaveTheProbabilitiesThatGenerateDrawsBy) {
  ASSERT_EQ(generate("--checkpoint llama --prompt 'And the ' --json --logprobs 256 "
                     "--max_new_tokens 1 --threads 1"),
            0)
      << said();
  const Json likeliest = Json::parse(out_).at("logprobs").at(0).at("top");
  std::vector<std::string> letters;
  for (char c = 'a'; c <= 'z'; ++c) {
    letters.emplace_back(1, c);
  }
  const std::vector<double> found = choices_of("And the ", letters);
  int compared = 0;
  for (const Json& token : likeliest) {
    const auto place = token.at("id").get<int64_t>() - 'a';
    if (place >= 0 && place < std::ssize(letters)) {
      ++compared;
      EXPECT_THAT(found[static_cast<size_t>(place)],
                  DoubleNear(token.at("logprob").get<double>(), kRounding));
    }
  }
  EXPECT_GE(compared, 20);
}

TEST_F(EvaluateTest, ChoosesRawAndPerByte) {
  const std::vector<std::string> choices = {"a", "e went up to the city"};
  const std::vector<double> found = choices_of("And th", choices);
  ASSERT_GT(found[0], found[1]);  // one byte against many
  const bool longer_per_byte = found[1] / static_cast<double>(choices[1].size()) > found[0];
  dir_.write("two.jsonl",
             Json({{"prompt", "And th"}, {"choices", choices}, {"answer", 0}}).dump() + "\n" +
                 Json({{"prompt", "And th"}, {"choices", choices}, {"answer", 1}}).dump() + "\n");
  const Json result = results("--choices two.jsonl --details").at(0);
  EXPECT_EQ(result.at("questions"), 2);
  EXPECT_EQ(result.at("right"), 1);
  EXPECT_EQ(result.at("right_per_byte"), 1);
  EXPECT_EQ(result.at("accuracy"), 0.5);
  for (const Json& question : result.at("details")) {
    EXPECT_EQ(question.at("chosen"), 0);
    EXPECT_EQ(question.at("chosen_per_byte"), longer_per_byte ? 1 : 0);
    EXPECT_EQ(question.at("bytes"), Json({1, choices[1].size()}));
  }
}

TEST_F(EvaluateTest, PromptsThatAreTooLongLoseTheirBeginning) {
  const std::string choice = "went up";
  const std::string prompt = kText + "And the king ";
  dir_.write("long.jsonl",
             Json({{"prompt", prompt}, {"choices", {choice, "q"}}, {"answer", 0}}).dump() + "\n");
  const Json result = results("--choices long.jsonl --details").at(0);
  EXPECT_EQ(result.at("shortened_prompts"), 2);
  // 33 bytes: the model takes 32, and the last is only scored.
  const std::string kept = (prompt + choice).substr((prompt + choice).size() - kPositions - 1);
  EXPECT_THAT(result.at("details").at(0).at("log_likelihoods").at(0).get<double>(),
              DoubleNear(choices_of(kept.substr(0, kept.size() - choice.size()), {choice, "q"})[0],
                         kRounding));
  dir_.write("long.jsonl",
             Json({{"prompt", "a"}, {"choices", {kText, "q"}}, {"answer", 0}}).dump() + "\n");
  expect_bad("--choices long.jsonl", "long.jsonl:1: choice 0 ... 76 tokens, more than");
}

TEST_F(EvaluateTest, SaysWhatIsWrong) {
  expect_bad("", "--text ... --choices ... is needed");
  expect_bad("--text none.txt", "none.txt");
  expect_bad("--text text.txt --stride 33", "33, ... 1 ... to the context of ... 32");
  expect_bad("--text text.txt --context 33", "the context is ... 33, ... 1 ... model's 32");
  expect_bad("--text text.txt --details", "--details ... are of questions");
  expect_bad("--text text.txt --strid 3", "--stride");
  expect_bad("--text text.txt --tensor_parallel 2", "does not divide the 1 processes");
  expect_bad("--text text.txt --adapter none", "none");
  dir_.write("part.txt", "a");
  expect_bad("--text part.txt", "part.txt: has 1 tokens ... none");
  dir_.write("part.txt", "");
  expect_bad("--text part.txt", "part.txt: has 0 tokens");
  dir_.write("q.jsonl", "{}\n");
  expect_bad("--choices q.jsonl", "q.jsonl:1: has no text \"prompt\"");
  dir_.write("q.jsonl", R"({"prompt": "", "choices": ["a", "b"], "answer": 0})");
  expect_bad("--choices q.jsonl", "q.jsonl:1: choice 0 ... nothing before");
  EXPECT_EQ(run(TAPESTRY_EVALUATE, "--text text.txt"), 2);
  EXPECT_THAT(err_, HasSubstr("--checkpoint is needed"));
  EXPECT_EQ(run(TAPESTRY_EVALUATE, "--help"), 0);
  EXPECT_THAT(out_, HasSubstr("--stride"));
}

TEST_F(EvaluateTest, LayoutsSayWhatOneProcessSays) {
  dir_.write("q.jsonl", R"({"prompt": "And", "choices": [" the", " a king", "x"], "answer": 1})"
                        "\n"
                        R"({"prompt": "the", "choices": ["re", "m"], "answer": 0})"
                        "\n");
  const std::string ask = "--text text.txt --stride 7 --choices q.jsonl --details";
  const Json expected = results(ask);
  for (const auto& [ranks, layout] :
       {std::pair{2, " --tensor_parallel 2"}, std::pair{2, " --pipeline_parallel 2"},
        std::pair{2, ""}, std::pair{4, " --tensor_parallel 2"},
        std::pair{4, " --pipeline_parallel 2"}}) {
    SCOPED_TRACE(std::to_string(ranks) + layout);
    const Json found = results(ask + layout, ranks);
    ASSERT_EQ(found.size(), 2U);
    EXPECT_EQ(found[0].at("windows"), expected[0].at("windows"));
    EXPECT_THAT(found[0].at("log_likelihood").get<double>(),
                DoubleNear(expected[0].at("log_likelihood"), kRounding));
    EXPECT_EQ(found[1].at("right"), expected[1].at("right"));
    for (size_t i = 0; i < 2; ++i) {
      const std::vector<double> sums = found[1].at("details").at(i).at("log_likelihoods");
      const std::vector<double> wanted = expected[1].at("details").at(i).at("log_likelihoods");
      EXPECT_THAT(sums, ::testing::Pointwise(::testing::DoubleNear(kRounding), wanted));
    }
  }
  EXPECT_EQ(evaluate("--text text.txt --tensor_parallel 2", 3), 2) << said();
  EXPECT_THAT(err_, HasSubstr("does not divide the 3 processes"));
}

}  // namespace
}  // namespace tapestry::hf_test

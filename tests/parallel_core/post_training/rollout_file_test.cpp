#include "parallel_core/post_training/grpo/rollout_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "tests/says.h"
#include "tests/temp_dir.h"
#include "text/tokenizers/tokenizer.h"

namespace tapestry::post_training {
namespace {

using data::TempDir;
using ::testing::ElementsAre;

constexpr RolloutFileOptions kOptions = {
    .num_generations = 2, .vocab_size = 20, .max_tokens = 6, .end_id = 9};

const std::string kFirst =
    R"({"prompt_ids": [1, 2], "completion_ids": [3, 9], "rewards": [1, null], "logprobs": [-0.5, -1]})"
    "\n";
const std::string kSecond =
    R"({"prompt_ids": [1, 2], "completion_ids": [4, 5, 6], "rewards": [0.5, 2], "logprobs": [-1, -2, -3], "seen": {"by": "nobody"}})"
    "\n";
const std::string kOther =
    R"({"prompt_ids": [7], "completion_ids": [8], "rewards": [0, 0], "logprobs": [-1]})"
    "\n";

RolloutFile read(const std::string& text, const RolloutFileOptions& options = kOptions) {
  const TempDir dir;
  return read_rollouts(dir.write("rollouts.jsonl", text), options);
}

void expect_refused(const std::string& text,
                    const std::string& says,
                    const RolloutFileOptions& options = kOptions) {
  EXPECT_ERROR(read(text, options), ValueError, says);
}

std::vector<int32_t> ids_of(const RolloutFile& file, int64_t i) {
  const auto ids = file.all.completions.ids(i);
  return {ids.begin(), ids.end()};
}

TEST(RolloutFile, LinesAreCompletions) {
  const RolloutFile file = read(kFirst + "\n" + kSecond);
  EXPECT_EQ(file.all.completions.size(), 2);
  EXPECT_EQ(file.all.num_generations, 2);
  EXPECT_THAT(ids_of(file, 0), ElementsAre(1, 2, 3, 9));
  EXPECT_EQ(file.all.completions.prompt_tokens(1), 2);
  EXPECT_THAT(file.all.truncated, ElementsAre(false, true));
  EXPECT_THAT(file.all.reward_names, ElementsAre("reward_1", "reward_2"));
  EXPECT_THAT(file.all.rewards[0], ElementsAre(1, 0.5));
  EXPECT_TRUE(std::isnan(file.all.rewards[1][0]));
  EXPECT_THAT(file.all.old_log_probs.of(1), ElementsAre(-1, -2, -3));
  EXPECT_TRUE(file.all.ref_log_probs.empty());
  EXPECT_FALSE(file.file.crc64.empty());
}

TEST(RolloutFile, RewardsByName) {
  const std::string line =
      R"({"prompt_ids": [1], "completion_ids": [2], "rewards": {"exact": 1, "short": -0.5}, "truncated": false})"
      "\n";
  const RolloutFile file = read(line + line);
  EXPECT_THAT(file.all.reward_names, ElementsAre("exact", "short"));
  EXPECT_THAT(file.all.rewards[1], ElementsAre(-0.5, -0.5));
  EXPECT_THAT(file.all.truncated, ElementsAre(false, false));
  EXPECT_TRUE(file.all.old_log_probs.empty());
}

TEST(RolloutFile, TextsAreEncoded) {
  const data::ByteTokenizer bytes;
  RolloutFileOptions options = kOptions;
  options.vocab_size = 257;
  options.tokenizer = &bytes;
  options.end_id = bytes.eod_id();
  const RolloutFile file =
      read(R"({"prompt": "ab", "completion": "c", "rewards": [1]})"
           "\n"
           R"({"prompt_ids": [97, 98], "completion": "de", "truncated": true, "rewards": [2]})",
           options);
  EXPECT_THAT(ids_of(file, 0), ElementsAre('a', 'b', 'c', 256));
  EXPECT_THAT(ids_of(file, 1), ElementsAre('a', 'b', 'd', 'e'));
  EXPECT_THAT(file.all.truncated, ElementsAre(false, true));
  expect_refused(R"({"prompt": "a", "completion_ids": [3], "rewards": [1]})", "no tokenizer");
}

TEST(RolloutFile, LinesThatAreWrong) {
  const auto line = [](const std::string& members) { return "{" + members + "}\n"; };
  const std::string prompt = R"("prompt_ids": [1], )";
  const std::string completion = R"("completion_ids": [2, 3], )";
  expect_refused("[]", "rollouts.jsonl:1");
  expect_refused(kFirst + line(prompt + completion + R"("rewards": [1, 1], "logprobs": [-1])"),
                 "rollouts.jsonl:2: \"logprobs\" has 1 numbers, the completion has 2 tokens");
  expect_refused(line(prompt + completion + R"("rewards": [1], "logprobs": [-1, NaN])"),
                 "logprobs[1] is null (or was NaN or infinite), expected a number");
  expect_refused(line(prompt + R"("completion_ids": [20], "rewards": [1])"),
                 "has the token id 20, the vocabulary has 0 to 19");
  expect_refused(line(prompt + R"("completion_ids": [-1], "rewards": [1])"), "token id -1");
  expect_refused(line(prompt + R"("completion_ids": [1.5], "rewards": [1])"), "the entry 1.5");
  expect_refused(line(prompt + R"("completion_ids": "a", "rewards": [1])"), "is a JSON string");
  expect_refused(line(prompt + R"("completion_ids": [], "rewards": [1])"),
                 "the completion is empty");
  expect_refused(line(R"("prompt_ids": [], "completion_ids": [2], "rewards": [1])"),
                 "the prompt is empty");
  expect_refused(line(completion + R"("rewards": [1])"),
                 "neither \"prompt_ids\" nor \"prompt\" is there");
  expect_refused(line(prompt + R"("completion_ids": [2, 2, 2, 2, 2, 2], "rewards": [1])"),
                 "a prompt of 1 and a completion of 6 tokens do not fit in 6");
  expect_refused(line(prompt + completion + R"("reward": 1)"), "\"rewards\" is a JSON null");
  expect_refused(line(prompt + completion + R"("rewards": [])"), "\"rewards\" is empty");
  expect_refused(line(prompt + completion + R"("rewards": ["good"])"),
                 "the reward reward_1 is \"good\", expected a number");
  expect_refused(line(prompt + completion + R"("rewards": [1], "truncated": 1)"),
                 "\"truncated\" is a JSON number, expected a boolean");
}

TEST(RolloutFile, GroupsThatAreWrong) {
  expect_refused(kFirst + kOther, "rollouts.jsonl:2: the prompt is not that of");
  expect_refused(kFirst + kSecond + kOther,
                 "rollouts.jsonl:3: the last group has 1 of the 2 lines");
  expect_refused(kFirst + R"({"prompt_ids": [1, 2], "completion_ids": [4], "rewards": [1, 2]})",
                 "has no \"logprobs\", the lines before have such");
  expect_refused(kFirst + kSecond +
                     R"({"prompt_ids": [7], "completion_ids": [8], "rewards": [0]})"
                     "\n" +
                     kOther,
                 "rollouts.jsonl:3: has 1 rewards (reward_1), the lines before have 2");
  expect_refused("\n", "no group of 2 completions");
}

TEST(RolloutFile, WholeGroupsAreLeftOut) {
  RolloutFileOptions options = kOptions;
  options.skip_bad_lines = true;
  const RolloutFile file = read(kOther + "{}\n" + kFirst + kSecond + kOther, options);
  EXPECT_EQ(file.all.completions.size(), 2);
  EXPECT_THAT(ids_of(file, 1), ElementsAre(1, 2, 4, 5, 6));
  EXPECT_EQ(file.bad_lines.count, 2);
  EXPECT_THAT(file.bad_lines.text(), ::testing::HasSubstr("rollouts.jsonl:2"));
  expect_refused("{}\n{}\n", "no group of 2 completions; 1 bad line", options);
}

}  // namespace
}  // namespace tapestry::post_training

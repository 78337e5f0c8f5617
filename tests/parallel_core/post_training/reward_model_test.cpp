#include "parallel_core/post_training/reward/reward_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/inference/generation.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/post_training/reward_file.h"
#include "tests/message_of.h"
#include "tests/parallel_core/parallel_testing.h"
#include "tests/parallel_core/small_model.h"
#include "tests/temp_dir.h"

namespace tapestry::post_training {
namespace reward_model_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kConfig =
    "training_config: {training_iters: 20, seed: 7}\n"
    "dataset_config: {tokenizer_type: byte}\n"
    "model_config:\n  vocab_size: 260\n  num_layers: 2\n  num_attention_heads: 4\n"
    "  hidden_size: 32\n  ffn_hidden_size: 64\n  seq_length: 32\n  init_method_std: 0.2\n"
    "  position_embedding_type: rope\n  normalization: RMSNorm\n  hidden_act: swiglu\n"
    "  add_bias_linear: False\n  untie_embeddings_and_output_weights: True\n";
const std::string kEnd = "optimizer_config: {learning_rate: 0.01}\n";
const std::string kScore = "  score_head: True\n";

using Texts = std::vector<std::vector<int32_t>>;

Texts some_texts() {
  Texts texts;
  for (int32_t i = 0; i < 9; ++i) {
    std::vector<int32_t>& ids = texts.emplace_back();
    for (int32_t t = 0; t <= (i * 7) % 20; ++t) {
      ids.push_back((i * 31 + t * t) % 250);
    }
  }
  return texts;
}

class RewardModelTest : public ::testing::Test {
 protected:
  std::string saved(const std::string& more) {
    const std::string text = kConfig + more + kEnd;
    const AllConfig config = init_configs_from_text(text, "run.yaml", {});
    model_ = get_model(config);
    tapestry::testing::jitter(*model_, 0.1);
    model_->eval();
    return write_checkpoint(*model_, config.model_config, 1,
                            {.directory = dir_.file("checkpoint"), .resolved_config = text});
  }
  // One text alone in a row.
  double reward(const std::vector<int32_t>& ids) const {
    const NoGradGuard guard;
    const TokenScoresRequest request = {.values = true};
    ModelInput input;
    input.tokens = tensor(std::vector<int64_t>(ids.begin(), ids.end()), {1, std::ssize(ids)});
    input.scores = &request;
    return model_->forward(input).scores->values.data<float>()[ids.size() - 1];
  }
  std::string write(const char* name, const std::string& text) const {
    std::ofstream(dir_.file(name)) << text;
    return dir_.file(name);
  }

  data::TempDir dir_;
  std::unique_ptr<GPTModel> model_;
};

TEST_F(RewardModelTest, JudgesEachTextByItself) {
  const std::string folder = saved(kScore);
  const Texts texts = some_texts();
  for (const int64_t tokens_per_pass : {1, 40, 4096}) {
    RewardModel model({.checkpoint = folder, .tokens_per_pass = tokens_per_pass});
    const std::vector<double> found = model.rewards(texts);
    ASSERT_EQ(found.size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      EXPECT_NEAR(found[i], reward(texts[i]), 1e-5) << i;
    }
    EXPECT_TRUE(model.rewards(Texts{}).empty());
  }
}

TEST_F(RewardModelTest, EncodesPromptAndCompletionAsOneText) {
  RewardModel model({.checkpoint = saved(kScore)});
  const JudgedText text = {.prompt = "ab", .completion = "c"};
  EXPECT_THAT(model.encode(text), ::testing::ElementsAre('a', 'b', 'c', 256));
  const JudgedText long_text = {.prompt = std::string(100, 'x'), .completion = "yz"};
  const std::vector<JudgedText> texts = {text, long_text};
  const std::vector<double> found = model.rewards(texts);
  EXPECT_NEAR(found[0], reward({'a', 'b', 'c', 256}), 1e-5);
  std::vector<int32_t> end(32, 'x');
  end[29] = 'y';
  end[30] = 'z';
  end[31] = 256;
  EXPECT_NEAR(found[1], reward(end), 1e-5);
}

TEST_F(RewardModelTest, JudgesFiles) {
  RewardModel model({.checkpoint = saved(kScore)});
  const JudgedFile pairs =
      judge_file(model, write("pairs.jsonl",
                              "{\"chosen\": \"good\", \"rejected\": \"bad\"}\n\n"
                              "{\"prompt\": \"so \", \"chosen\": \"a\", \"rejected\": \"b\"}\n"));
  ASSERT_EQ(pairs.lines.size(), 2);
  EXPECT_TRUE(pairs.has_pairs);
  EXPECT_THAT(pairs.lines[1].place, HasSubstr("pairs.jsonl:3"));
  EXPECT_NEAR(pairs.lines[0].rewards[0], reward({'g', 'o', 'o', 'd', 256}), 1e-5);
  EXPECT_NEAR(pairs.lines[1].rewards[1], reward({'s', 'o', ' ', 'b', 256}), 1e-5);
  double right = 0;
  for (const JudgedLine& line : pairs.lines) {
    right += line.rewards[0] > line.rewards[1] ? 0.5 : 0;
  }
  EXPECT_EQ(pairs.accuracy(), right);
  const JudgedFile answers =
      judge_file(model, write("answers.jsonl", "{\"prompt\": \"so \", \"completion\": \"b\"}\n"));
  EXPECT_FALSE(answers.has_pairs);
  EXPECT_NEAR(answers.mean(), pairs.lines[1].rewards[1], 1e-5);
  EXPECT_THAT(message_of<ValueError>([&] { judge_file(model, write("empty.jsonl", "\n")); }),
              HasSubstr("no lines"));
}

TEST_F(RewardModelTest, RefusesWhatItCannotJudge) {
  RewardModel model({.checkpoint = saved(kScore)});
  const auto error = [&](const std::vector<int32_t>& ids) {
    return message_of<ValueError>([&] { model.rewards(Texts{ids}); });
  };
  EXPECT_THAT(error({}), HasSubstr("0 tokens, expected 1 to 32"));
  EXPECT_THAT(error(std::vector<int32_t>(33, 1)), HasSubstr("33 tokens"));
  EXPECT_THAT(error({5, 260}), HasSubstr("the id 260"));
  const std::vector<int32_t> prompt = {1, 2};
  EXPECT_THAT(message_of<ValueError>([&] { generate(*model_, prompt, {.max_new_tokens = 1}); }),
              HasSubstr("reward model"));
}

TEST_F(RewardModelTest, ALanguageModelIsRefused) {
  const std::string folder = saved("");
  EXPECT_THAT(message_of<ValueError>([&] { RewardModel({.checkpoint = folder}); }),
              HasSubstr("no reward model"));
}

TEST_F(RewardModelTest, SharesTheLayoutOfTheRanks) {
  const std::string folder = saved(kScore);
  const Texts texts = some_texts();
  const std::vector<double> single = RewardModel({.checkpoint = folder}).rewards(texts);
  for (const ModelParallelSizes& sizes :
       {ModelParallelSizes{.tensor_model_parallel_size = 2},
        ModelParallelSizes{.pipeline_model_parallel_size = 2},
        ModelParallelSizes{.context_parallel_size = 2}, ModelParallelSizes{}}) {
    tapestry::testing::run_parallel(2, sizes, [&] {
      RewardModel model({.checkpoint = folder, .tokens_per_pass = 40});
      // Copies have numbers of their own.
      const size_t count = texts.size() - static_cast<size_t>(2 * get_data_parallel_rank());
      const std::vector<double> found = model.rewards(std::span(texts).first(count));
      ASSERT_EQ(found.size(), count);
      for (size_t i = 0; i < count; ++i) {
        EXPECT_NEAR(found[i], single[i], 1e-5) << i;
      }
    });
  }
}

// -- weights
// ---------------------------------------------------------------------------------------

TEST_F(RewardModelTest, ALanguageModelGetsANewHead) {
  const std::string folder = saved("");
  const AllConfig config = init_configs_from_text(kConfig + kScore + kEnd, "run.yaml", {});
  EXPECT_TRUE(starts_score_head(config.model_config, folder));
  const auto model = get_model(config);
  const tapestry::testing::State start = get_logical_state(*model);
  load_weights(*model, config.model_config, folder);
  tapestry::testing::State found = get_logical_state(*model);
  EXPECT_TRUE(tapestry::testing::same_bits(found.at("score.weight"), start.at("score.weight")));
  EXPECT_GT(tapestry::testing::largest(found.at("score.weight")), 0);
  tapestry::testing::State expected = get_logical_state(*model_);
  EXPECT_EQ(expected.erase("lm_head.weight"), 1);
  found.erase("score.weight");
  tapestry::testing::expect_states_equal(found, expected);
}

TEST_F(RewardModelTest, AHeadIsNotPassedOver) {
  const std::string folder = saved(kScore);
  const AllConfig language_model = init_configs_from_text(kConfig + kEnd, "run.yaml", {});
  const auto model = get_model(language_model);
  EXPECT_THAT(
      message_of<ValueError>([&] { load_weights(*model, language_model.model_config, folder); }),
      HasSubstr("score_head"));
  const AllConfig reward_model = init_configs_from_text(kConfig + kScore + kEnd, "run.yaml", {});
  EXPECT_FALSE(starts_score_head(reward_model.model_config, folder));
}

}  // namespace
}  // namespace reward_model_test
}  // namespace tapestry::post_training

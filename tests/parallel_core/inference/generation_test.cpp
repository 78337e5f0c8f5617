#include "parallel_core/inference/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "autograd/tensor/error.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

using testing::Trainer;
using Ids = std::vector<int32_t>;

constexpr float kInf = std::numeric_limits<float>::infinity();

class Generate : public ::testing::Test {
 protected:
  Generate() : trainer_({"model_config.position_embedding_type=rope"}) {
    // Far from uniform, so that the likeliest token is clear.
    testing::jitter(*trainer_.model, 0.5);
  }
  Ids run(const GenerationOptions& options, const Ids& prompt = {3, 1, 4}) {
    return generate(*trainer_.model, prompt, options);
  }
  // The likeliest next token after these, by the model itself.
  int32_t likeliest(const std::vector<int64_t>& ids) {
    const NoGradGuard guard;
    const auto length = static_cast<int64_t>(ids.size());
    const Tensor logits = trainer_.model->forward({.tokens = tensor(ids, {1, length})}).logits;
    return static_cast<int32_t>(argmax(logits.select(1, length - 1)).item());
  }
  Trainer trainer_;
};

TEST_F(Generate, GreedyTakesTheLikeliestEachTime) {
  const Ids found = run({.max_new_tokens = 12, .temperature = 0, .seed = 5});
  std::vector<int64_t> context = {3, 1, 4};
  for (const int32_t id : found) {
    EXPECT_EQ(id, likeliest(context));
    context.push_back(id);
  }
  EXPECT_EQ(found.size(), 12U);
  EXPECT_EQ(run({.max_new_tokens = 12, .temperature = 0, .seed = 6}), found);
  EXPECT_EQ(run({.max_new_tokens = 12, .temperature = 3, .top_k = 1, .seed = 7}), found);
  EXPECT_EQ(run({.max_new_tokens = 12, .temperature = 1, .top_p = 1e-9, .seed = 8}), found);
  EXPECT_EQ(run({.max_new_tokens = 12, .temperature = 1e-6, .seed = 9}), found);
}

TEST_F(Generate, DataLayoutDoesNotMatter) {
  Trainer other({"model_config.position_embedding_type=rope", "dataset_config.data_layout=SBH"});
  testing::jitter(*other.model, 0.5);
  const GenerationOptions options{.max_new_tokens = 10, .seed = 3};
  EXPECT_EQ(generate(*other.model, Ids{3, 1, 4}, options), run(options));
}

TEST_F(Generate, TheSeedDecides) {
  const GenerationOptions options{.max_new_tokens = 16, .temperature = 2, .seed = 1};
  GenerationOptions other = options;
  other.seed = 2;
  EXPECT_EQ(run(options), run(options));
  EXPECT_NE(run(options), run(other));
  // A longer text begins with the shorter one.
  GenerationOptions longer = options;
  longer.max_new_tokens = 20;
  Ids beginning = run(longer);
  beginning.resize(16);
  EXPECT_EQ(beginning, run(options));
}

TEST_F(Generate, StaysBelowTheVocabularyLimit) {
  for (const int32_t id :
       run({.max_new_tokens = 60, .temperature = 5, .seed = 1, .vocab_size = 4})) {
    EXPECT_LT(id, 4);
  }
  EXPECT_EQ(run({.max_new_tokens = 3, .seed = 1, .vocab_size = 1}), Ids({0, 0, 0}));
}

TEST_F(Generate, SeesNoMoreThanTheContext) {
  const GenerationOptions options{.max_new_tokens = 6, .temperature = 0, .max_context = 3};
  const Ids found = run(options, {9, 8, 7, 3, 1, 4});
  EXPECT_EQ(found, run(options, {3, 1, 4}));
  std::vector<int64_t> context = {3, 1, 4};
  for (const int32_t id : found) {
    EXPECT_EQ(id, likeliest({context.end() - 3, context.end()}));
    context.push_back(id);
  }
  // A model with learned positions has no others than those of its table.
  Trainer learned;
  EXPECT_EQ(generate(*learned.model, Ids{1, 2}, {.max_new_tokens = 20, .max_context = 8}).size(),
            20U);
  EXPECT_THROW(generate(*learned.model, Ids{1, 2}, {.max_new_tokens = 20}), IndexError);
}

TEST_F(Generate, EndsAtTheEndOfDocument) {
  const Ids all = run({.max_new_tokens = 8, .temperature = 0});
  const auto end = std::find(all.begin(), all.end(), all[4]);
  EXPECT_EQ(run({.max_new_tokens = 8, .temperature = 0, .eod_id = all[4]}), Ids(all.begin(), end));
}

TEST_F(Generate, CallsBackWithEachToken) {
  Ids seen;
  const Ids found = generate(*trainer_.model, Ids{2}, {.max_new_tokens = 5},
                             [&](int32_t id) { seen.push_back(id); });
  EXPECT_EQ(seen, found);
  EXPECT_TRUE(run({.max_new_tokens = 0}).empty());
}

TEST_F(Generate, LeavesModeAndGradientsAlone) {
  trainer_.model->train();
  run({.max_new_tokens = 2});
  EXPECT_TRUE(trainer_.model->is_training());
  EXPECT_THROW(run({.max_new_tokens = 2}, {31}), IndexError);
  EXPECT_TRUE(trainer_.model->is_training());
  trainer_.model->eval();
  run({.max_new_tokens = 2});
  EXPECT_FALSE(trainer_.model->is_training());
  EXPECT_TRUE(grad_enabled());
}

TEST_F(Generate, DropoutIsOff) {
  Trainer dropping({"model_config.position_embedding_type=rope", "model_config.hidden_dropout=0.5",
                    "model_config.attention_dropout=0.5"});
  testing::jitter(*dropping.model, 0.5);
  const GenerationOptions options{.max_new_tokens = 10, .seed = 3};
  EXPECT_EQ(generate(*dropping.model, Ids{3, 1, 4}, options), run(options));
}

TEST_F(Generate, BadInputs) {
  EXPECT_THROW(run({}, {}), ValueError);
  EXPECT_THROW(run({.max_new_tokens = 1}, {-1}), IndexError);
  EXPECT_THROW(run({.max_new_tokens = -1}), ValueError);
  EXPECT_THROW(run({.temperature = -0.1}), ValueError);
  EXPECT_THROW(run({.temperature = std::nan("")}), ValueError);
  EXPECT_THROW(run({.top_k = -1}), ValueError);
  EXPECT_THROW(run({.top_p = 0}), ValueError);
  EXPECT_THROW(run({.top_p = 1.5}), ValueError);
}

// How often each token comes, over evenly spaced draws.
std::vector<double> shares(const std::vector<float>& logits, const GenerationOptions& options) {
  constexpr int kDraws = 20000;
  std::vector<double> out(logits.size());
  for (int i = 0; i < kDraws; ++i) {
    const int64_t id = sample_token(logits, options, (i + 0.5) / kDraws);
    out[static_cast<size_t>(id)] += 1.0 / kDraws;
  }
  return out;
}

void expect_shares(const std::vector<double>& found, std::vector<double> weights) {
  double total = 0;
  for (const double weight : weights) {
    total += weight;
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_NEAR(found[i], weights[i] / total, 2e-4) << i;
  }
}

TEST(SampleToken, FollowsTheSoftmax) {
  const std::vector<float> logits = {std::log(2.0F), std::log(5.0F), -kInf, std::log(3.0F)};
  expect_shares(shares(logits, {}), {2, 5, 0, 3});
  expect_shares(shares(logits, {.temperature = 0.5}), {4, 25, 0, 9});
  expect_shares(shares(logits, {.temperature = 0}), {0, 1, 0, 0});
  expect_shares(shares(logits, {.top_k = 2}), {0, 5, 0, 3});
  expect_shares(shares(logits, {.top_k = 9}), {2, 5, 0, 3});
  expect_shares(shares(logits, {.top_p = 0.49}), {0, 1, 0, 0});
  expect_shares(shares(logits, {.top_p = 0.51}), {0, 5, 0, 3});
  expect_shares(shares(logits, {.top_p = 0.79}), {0, 5, 0, 3});
  expect_shares(shares(logits, {.top_p = 0.81}), {2, 5, 0, 3});
  // top_p counts within what top_k left: 5 of 8 is 0.625.
  expect_shares(shares(logits, {.top_k = 2, .top_p = 0.62}), {0, 1, 0, 0});
  expect_shares(shares(logits, {.top_k = 2, .top_p = 0.63}), {0, 5, 0, 3});
  expect_shares(shares(logits, {.vocab_size = 2}), {2, 5, 0, 0});
  expect_shares(shares(logits, {.vocab_size = 100}), {2, 5, 0, 3});
}

TEST(SampleToken, EqualLogitsGoByNumber) {
  const std::vector<float> logits = {1, 3, 3, 3};
  EXPECT_EQ(sample_token(logits, {.temperature = 0}, 0.9), 1);
  expect_shares(shares(logits, {.top_k = 2}), {0, 1, 1, 0});
}

TEST(SampleToken, LargeLogitsDoNotOverflow) {
  expect_shares(shares({3e38F, -3e38F, 3e38F}, {}), {1, 0, 1});
  expect_shares(shares({500, 500.6931472F}, {}), {1, 2});
}

TEST(SampleToken, BadLogits) {
  EXPECT_THROW(sample_token(std::vector<float>{1, NAN}, {}, 0.5), ValueError);
  EXPECT_THROW(sample_token(std::vector<float>{1, kInf}, {.temperature = 0}, 0.5), ValueError);
  EXPECT_THROW(sample_token(std::vector<float>{}, {}, 0.5), ValueError);
  // What lies beyond the vocabulary is not looked at.
  EXPECT_EQ(sample_token(std::vector<float>{1, NAN}, {.vocab_size = 1}, 0.5), 0);
}

}  // namespace
}  // namespace tapestry

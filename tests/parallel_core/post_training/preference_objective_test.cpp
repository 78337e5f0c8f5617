// Objectives of preferences on scores that are made up, where losses can be written out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "autograd/autograd.h"
#include "parallel_core/post_training/preference/dpo_objective.h"
#include "parallel_core/post_training/preference/known_loss.h"
#include "parallel_core/post_training/preference/kto_objective.h"
#include "parallel_core/post_training/preference/odds_objective.h"
#include "parallel_core/post_training/preference/sorted_ratios.h"
#include "parallel_core/post_training/rows/pack_sequences.h"

namespace tapestry::post_training {
namespace {

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

// Three pairs whose completions have 3, 1 / 2, 4 / 1, 2 tokens, behind prompts of 2 tokens.
std::shared_ptr<TaskExamples> three_pairs() {
  auto examples = std::make_shared<TaskExamples>();
  examples->sequences = SequenceSet(2);
  for (const size_t count : {3, 1, 2, 4, 1, 2}) {
    examples->sequences.add(std::vector<int32_t>{1, 2}, std::vector<int32_t>(count, 5));
  }
  examples->train_units = 3;
  return examples;
}

// A number for each token of each sequence; none is like another.
float made_up(int64_t sequence, int64_t token, double kind) {
  return static_cast<float>(-1.5 - std::sin(kind + 3.7 * static_cast<double>(sequence) +
                                            1.3 * static_cast<double>(token)));
}

std::shared_ptr<LogProbTable> made_up_reference(const SequenceSet& set) {
  auto table = std::make_shared<LogProbTable>(set);
  for (int64_t i = 0; i < table->size(); ++i) {
    int64_t token = 0;
    for (float& value : table->tokens(i)) {
      value = made_up(i, token++, 50);
    }
  }
  return table;
}

// Scores of the positions that count.
Tensor made_up_scores(const data::Batch& batch, double kind) {
  std::vector<float> values(static_cast<size_t>(batch.batch * batch.seq));
  for (const ScoredCompletion& completion : scored_completions(batch)) {
    for (int64_t t = completion.begin; t < completion.end; ++t) {
      values[static_cast<size_t>(t)] = made_up(completion.number, t - completion.begin, kind);
    }
  }
  return tensor(values, {batch.batch, batch.seq});
}

// Losses that need no pass of their own leave it alone.
class NoModel final : public ParallelModel {
 public:
  ModelOutput forward(const ModelInput& /*input*/) override { return {}; }
  const PipelineStage& stage() const override { return stage_; }
  std::string type_name() const override { return "NoModel"; }
  Shape hidden_shape(int64_t /*batch*/, int64_t /*seq*/) const override { return {}; }
  DType hidden_dtype() const override { return kFloat32; }

 private:
  PipelineStage stage_;
};

struct Pass {
  double loss = 0;
  std::map<int64_t, double> gradients;  // of a sequence's tokens together
  std::map<std::string, double> measured;
};

// A step over micro-batches of these units.
Pass run(StepObjective& objective,
         const SequenceSet& set,
         const std::vector<std::vector<int64_t>>& micro_batches,
         const RowRoom& room = {.seq_length = 16}) {
  std::vector<data::Batch> batches;
  for (const std::vector<int64_t>& units : micro_batches) {
    std::vector<int64_t> numbers;
    for (int64_t side = 0; side < set.per_unit(); ++side) {
      for (const int64_t unit : units) {
        numbers.push_back(unit * set.per_unit() + side);
      }
    }
    batches.push_back(pack_sequences(set, numbers, room));
  }
  Pass pass;
  NoModel model;
  objective.begin_step(model, 1, batches, /*training=*/true);
  for (size_t i = 0; i < batches.size(); ++i) {
    ModelOutput output;
    TokenScores& scores = output.scores.emplace();
    scores.log_probs = made_up_scores(batches[i], 0);
    scores.log_probs.set_requires_grad(true);
    scores.entropy = made_up_scores(batches[i], 1);
    scores.logit_means = made_up_scores(batches[i], 2);
    scores.likeliest = made_up_scores(batches[i], 3);
    scores.square_sums = made_up_scores(batches[i], 4);
    const Tensor part = objective.part(static_cast<int64_t>(i), batches[i], output);
    pass.loss += part.item();
    part.backward();
    const ScoreValues gradient(scores.log_probs.grad());
    for (const ScoredCompletion& completion : scored_completions(batches[i])) {
      pass.gradients[completion.number] += gradient.sum(completion.first, completion.last);
    }
  }
  for (const auto& [name, value] : objective.finish_step()) {
    pass.measured[name] = value;
  }
  return pass;
}

AllConfig config_of(const std::string& task, std::vector<std::string> losses, double beta) {
  AllConfig config;
  config.post_training_config.task = task;
  config.post_training_config.loss_type = std::move(losses);
  config.post_training_config.beta = beta;
  return config;
}

double policy(int64_t sequence, int64_t begin, int64_t end, double kind = 0) {
  double sum = 0;
  for (int64_t t = begin; t < end; ++t) {
    sum += made_up(sequence, t, kind);
  }
  return sum;
}

void expect_same(const Pass& a, const Pass& b) {
  EXPECT_NEAR(a.loss, b.loss, 1e-6);
  for (const auto& [number, gradient] : a.gradients) {
    EXPECT_NEAR(gradient, b.gradients.at(number), 1e-7) << number;
  }
  for (const auto& [name, value] : a.measured) {
    EXPECT_NEAR(value, b.measured.at(name), 1e-12) << name;
  }
}

TEST(KnownLoss, HasTheGivenGradient) {
  Tensor x = tensor(std::vector<float>{1, 2, 3, 4}, {2, 2});
  x.set_requires_grad(true);
  const Tensor loss = known_loss(x, 7.5, {0.5F, -1, 0, 2});
  EXPECT_EQ(loss.item(), 7.5);
  (loss * 3).backward();
  EXPECT_THAT(x.grad().to_vector<float>(), testing::ElementsAre(1.5F, -3, 0, 6));
  EXPECT_THROW(known_loss(x, 1, {1, 2}), ValueError);
}

TEST(DpoObjective, IsTheMeanOverThePairsOfTheStep) {
  const auto examples = three_pairs();
  const auto reference = made_up_reference(examples->sequences);
  const AllConfig config = config_of("dpo", {"sigmoid"}, 0.3);
  DpoObjective objective(config, examples, reference, {.seq_length = 16});
  const Pass whole = run(objective, examples->sequences, {{0, 1, 2}});
  double loss = 0;
  double margins = 0;
  const int64_t tokens[] = {3, 1, 2, 4, 1, 2};
  for (int64_t unit = 0; unit < 3; ++unit) {
    const auto ratio = [&](int64_t number) {
      return policy(number, 0, tokens[number]) - policy(number, 0, tokens[number], 50);
    };
    const double delta = ratio(2 * unit) - ratio(2 * unit + 1);
    loss -= std::log(logistic(0.3 * delta)) / 3;
    margins += 0.3 * delta / 3;
    const double slope = -0.3 * logistic(-0.3 * delta) / 3;
    EXPECT_NEAR(whole.gradients.at(2 * unit), slope * static_cast<double>(tokens[2 * unit]), 1e-6);
    EXPECT_NEAR(whole.gradients.at(2 * unit + 1),
                -slope * static_cast<double>(tokens[2 * unit + 1]), 1e-6);
  }
  EXPECT_NEAR(whole.loss, loss, 1e-6);
  EXPECT_NEAR(whole.measured.at("rewards/margins"), margins, 1e-6);
  EXPECT_EQ(whole.measured.at("num_tokens"), 6 * 2 + 13);
  DpoObjective again(config, examples, reference, {.seq_length = 16});
  expect_same(run(again, examples->sequences, {{0}, {}, {2, 1}}), whole);
}

TEST(DpoObjective, WeighsTokensBeyondTheShorterCompletionAndPairs) {
  const auto examples = three_pairs();
  const auto reference = made_up_reference(examples->sequences);
  AllConfig config = config_of("dpo", {"sigmoid", "hinge"}, 0.3);
  config.post_training_config.loss_weights = {2, 0.5};
  config.post_training_config.ld_alpha = 0.25;
  config.post_training_config.use_weighting = true;
  DpoObjective objective(config, examples, reference, {.seq_length = 16});
  const Pass pass = run(objective, examples->sequences, {{1}});
  // Chosen has 2 tokens, rejected 4.
  const auto sum = [](int64_t number, double kind) {
    return policy(number, 0, 2, kind) + (number == 3 ? 0.25 * policy(3, 2, 4, kind) : 0.0);
  };
  const double delta = sum(2, 0) - sum(2, 50) - (sum(3, 0) - sum(3, 50));
  const double weight = std::exp((policy(2, 0, 2) - policy(2, 0, 2, 4)) / 2 +
                                 (policy(3, 0, 4) - policy(3, 0, 4, 4)) / 4);
  EXPECT_NEAR(
      pass.loss,
      weight * (-2 * std::log(logistic(0.3 * delta)) + 0.5 * std::max(0.0, 1 - 0.3 * delta)), 1e-6);
  const double slope = weight * (-2 * 0.3 * logistic(-0.3 * delta) - 0.5 * 0.3);
  EXPECT_NEAR(pass.gradients.at(2), 2 * slope, 1e-6);
  EXPECT_NEAR(pass.gradients.at(3), -(2 + 2 * 0.25) * slope, 1e-6);
  EXPECT_NEAR(pass.measured.at("logps/rejected"), sum(3, 0), 1e-6);
}

TEST(DpoObjective, SftIsTheMeanOverChosenTokensOfTheStep) {
  const auto examples = three_pairs();
  const auto reference = made_up_reference(examples->sequences);
  const AllConfig config = config_of("dpo", {"sft"}, 0.3);
  DpoObjective objective(config, examples, reference, {.seq_length = 16});
  const Pass pass = run(objective, examples->sequences, {{0, 1}, {2}});
  EXPECT_NEAR(pass.loss, -(policy(0, 0, 3) + policy(2, 0, 2) + policy(4, 0, 1)) / 6, 1e-6);
  EXPECT_NEAR(pass.gradients.at(0), -0.5, 1e-6);
  EXPECT_EQ(pass.gradients.at(1), 0);
  EXPECT_NEAR(pass.measured.at("mean_token_accuracy"),
              (policy(0, 0, 3, 3) + policy(2, 0, 2, 3) + policy(4, 0, 1, 3)) / 6, 1e-6);
  EXPECT_NEAR(pass.measured.at("logits/rejected"),
              (policy(1, 0, 1, 2) + policy(3, 0, 4, 2) + policy(5, 0, 2, 2)) / 7, 1e-6);
}

TEST(SortedRatios, CompareElementsOfSortedLists) {
  PostTrainingConfig config;
  config.beta = 0.5;
  config.label_smoothing = 0.1;
  const std::vector<PairLogProbs> pairs = {
      {.chosen = -1, .rejected = -5, .reference_chosen = -3, .reference_rejected = -4},
      {.chosen = -6, .rejected = -2, .reference_chosen = -2, .reference_rejected = -9},
      {.chosen = -4, .rejected = -3, .reference_chosen = -1, .reference_rejected = -3}};
  const SortedRatios sorted(pairs);
  // Policy 4, -4, -1 and reference 1, 7, 2: sorted -4 -1 4 and 1 2 7.
  const double paired[] = {4 - 7, -4 - 1, -1 - 2};
  // Log ratios 2, -4, -3 and -1, 7, 0: sorted -4 -3 2 and -1 0 7.
  const double chosen[] = {2 - 7, -4 + 1, -3 - 0};
  const double rejected[] = {-4 + 1, 2 - 7, -3 - 0};
  for (int64_t i = 0; i < 3; ++i) {
    const auto at = static_cast<size_t>(i);
    const PairLoss aot = sorted.loss(/*unpaired=*/false, config, i, pairs[at]);
    EXPECT_DOUBLE_EQ(aot.value, aot_loss(config, paired[at]).value);
    EXPECT_DOUBLE_EQ(aot.by_chosen, aot_loss(config, paired[at]).derivative);
    EXPECT_DOUBLE_EQ(aot.by_rejected, -aot.by_chosen);
    const PairLoss unpaired = sorted.loss(/*unpaired=*/true, config, i, pairs[at]);
    EXPECT_DOUBLE_EQ(unpaired.value, aot_loss(config, chosen[at]).value);
    EXPECT_DOUBLE_EQ(unpaired.by_chosen, aot_loss(config, chosen[at]).derivative);
    EXPECT_DOUBLE_EQ(unpaired.by_rejected, -aot_loss(config, rejected[at]).derivative);
  }
}

TEST(KtoObjective, MeansAreOverTheExamplesOfTheStep) {
  auto examples = std::make_shared<TaskExamples>();
  for (const size_t count : {2, 3, 1}) {
    examples->sequences.add(std::vector<int32_t>{1, 2}, std::vector<int32_t>(count, 5));
  }
  examples->labels = {1, 0, 1};
  const auto reference = made_up_reference(examples->sequences);
  AllConfig config = config_of("kto", {"apo_zero_unpaired"}, 0.3);
  config.post_training_config.desirable_weight = 1.5;
  KtoObjective objective(config, examples, {.examples = reference}, {.seq_length = 16});
  const Pass whole = run(objective, examples->sequences, {{0, 1, 2}});
  const auto ratio = [&](int64_t number, int64_t tokens) {
    return policy(number, 0, tokens) - policy(number, 0, tokens, 50);
  };
  EXPECT_NEAR(whole.loss,
              (1.5 * (1 - logistic(0.3 * ratio(0, 2))) + logistic(0.3 * ratio(1, 3)) +
               1.5 * (1 - logistic(0.3 * ratio(2, 1)))) /
                  3,
              1e-6);
  EXPECT_NEAR(whole.measured.at("rewards/chosen"), 0.3 * (ratio(0, 2) + ratio(2, 1)) / 2, 1e-6);
  EXPECT_EQ(whole.measured.at("kl"), 0);
  KtoObjective again(config, examples, {.examples = reference}, {.seq_length = 16});
  expect_same(run(again, examples->sequences, {{2}, {0, 1}}), whole);
  // Of one kind alone there is no mean of the other.
  const Pass one = run(again, examples->sequences, {{1}});
  EXPECT_EQ(one.measured.count("rewards/chosen") + one.measured.count("rewards/margins"), 0);
  EXPECT_NEAR(one.measured.at("logps/rejected"), policy(1, 0, 3), 1e-6);
}

TEST(OddsObjective, CpoAddsTheCrossEntropyOfChosenCompletions) {
  const auto examples = three_pairs();
  AllConfig config = config_of("cpo", {"simpo"}, 2);
  config.post_training_config.cpo_alpha = 0.5;
  config.post_training_config.simpo_gamma = 1;
  OddsObjective objective(config);
  const RowRoom room = {.seq_length = 16, .counted = CountedPositions::kPaddedRows};
  const Pass pass = run(objective, examples->sequences, {{1}}, room);
  const double z = policy(2, 0, 2) / 2 - policy(3, 0, 4) / 4 - 0.5;
  const double nll = -policy(2, 0, 2) / 2;
  EXPECT_NEAR(pass.loss, -std::log(logistic(2 * z)) + 0.5 * nll, 1e-6);
  EXPECT_NEAR(pass.gradients.at(2), -2 * logistic(-2 * z) - 0.5, 1e-6);
  EXPECT_NEAR(pass.gradients.at(3), 2 * logistic(-2 * z), 1e-6);
  EXPECT_NEAR(pass.measured.at("nll_loss"), nll, 1e-6);
  EXPECT_NEAR(pass.measured.at("logps/chosen"), policy(2, 0, 2) / 2, 1e-6);
  // Over all six positions of each row.
  EXPECT_NEAR(pass.measured.at("logits/chosen"), policy(2, 0, 2, 2) / 6, 1e-6);
}

TEST(OddsObjective, OrpoLearnsPromptsToo) {
  const auto examples = three_pairs();
  const AllConfig config = config_of("orpo", {}, 0.5);
  OddsObjective objective(config);
  const RowRoom room = {.seq_length = 16, .counted = CountedPositions::kPaddedRowsButLast};
  const Pass whole = run(objective, examples->sequences, {{0, 1, 2}}, room);
  const int64_t tokens[] = {3, 1, 2, 4, 1, 2};
  double ratio = 0;
  double nll = 0;
  for (int64_t unit = 0; unit < 3; ++unit) {
    const auto odds = [&](int64_t number) {
      const double mean = policy(number, 0, tokens[number]) / static_cast<double>(tokens[number]);
      return mean - std::log(1 - std::exp(mean));
    };
    ratio += std::log(logistic(odds(2 * unit) - odds(2 * unit + 1))) / 3;
    nll -= policy(2 * unit, 0, tokens[2 * unit]) / 9;  // scores of prompts are made up as 0
  }
  EXPECT_NEAR(whole.loss, nll - 0.5 * ratio, 1e-6);
  EXPECT_NEAR(whole.measured.at("log_odds_ratio"), ratio, 1e-6);
  OddsObjective again(config);
  const Pass parts = run(again, examples->sequences, {{1, 0}, {2}}, room);
  EXPECT_NEAR(parts.loss, whole.loss, 1e-6);
  for (const auto& [number, gradient] : whole.gradients) {
    EXPECT_NEAR(parts.gradients.at(number), gradient, 1e-7);
  }
}

}  // namespace
}  // namespace tapestry::post_training

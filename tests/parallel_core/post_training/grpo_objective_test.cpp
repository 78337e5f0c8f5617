#include "parallel_core/post_training/grpo/grpo_objective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "autograd/ops/elementwise.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/post_training/grpo/advantages.h"
#include "parallel_core/post_training/grpo/entropy_quantile.h"
#include "parallel_core/post_training/objective/completion_scores.h"
#include "parallel_core/post_training/objective/known_gradient.h"
#include "parallel_core/post_training/rows/pack_sequences.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::post_training {
namespace {

// Tells each token a log-probability and an entropy by what the next token is.
class TableModel final : public ParallelModel {
 public:
  std::string type_name() const override { return "TableModel"; }
  bool tells_scores() const override { return true; }
  ModelOutput forward(const ModelInput& input) override {
    const Tensor labels = input.labels.to(kFloat32);
    ModelOutput output;
    output.scores.emplace();
    output.scores->log_probs = labels * -0.1 - shift;
    output.scores->entropy = labels * 0.5 + 1;
    ++passes;
    return output;
  }
  const PipelineStage& stage() const override { return stage_; }
  Shape hidden_shape(int64_t batch, int64_t seq) const override { return {batch, seq, 1}; }
  DType hidden_dtype() const override { return kFloat32; }

  double shift = 0;
  int passes = 0;

 private:
  PipelineStage stage_ = {.rank = 0, .size = 1, .chunks = {LayerRange{}}};
};

// Four completions of two prompts, of 2, 3, 1 and 4 tokens; the third is cut off.
RolloutBatch four_completions(bool with_old) {
  RolloutBatch batch;
  batch.num_generations = 2;
  batch.completions.add(std::vector<int32_t>{1, 2}, std::vector<int32_t>{3, 4});
  batch.completions.add(std::vector<int32_t>{1, 2}, std::vector<int32_t>{5, 6, 4});
  batch.completions.add(std::vector<int32_t>{7}, std::vector<int32_t>{8});
  batch.completions.add(std::vector<int32_t>{7}, std::vector<int32_t>{3, 9, 2, 4});
  batch.truncated = {false, false, true, false};
  batch.reward_names = {"only"};
  batch.rewards = {{1, 0, 0.5, 2}};
  set_advantages({}, batch);
  for (int64_t i = 0; with_old && i < 4; ++i) {
    const auto ids = batch.completions.ids(i);
    std::vector<double> old;
    for (size_t t = static_cast<size_t>(batch.completions.prompt_tokens(i)); t < ids.size(); ++t) {
      old.push_back(-0.1 * ids[t] + 0.3 * (t % 2 == 0 ? 1 : -1));  // ratios of 0.74 and 1.35
    }
    batch.old_log_probs.add(old);
  }
  return batch;
}

class GrpoObjectiveTest : public ::testing::Test {
 protected:
  GrpoObjectiveTest() {
    PostTrainingConfig& p = config_.post_training_config;
    p.loss_type = {"dapo"};
    p.beta = 0.0;
    p.num_generations = 2;
    p.max_completion_length = 5;
  }

  std::vector<data::Batch> rows(const std::vector<std::vector<int64_t>>& micro_batches) const {
    std::vector<data::Batch> result;
    for (const auto& numbers : micro_batches) {
      result.push_back(pack_sequences(batch_.completions, numbers, {.seq_length = 16}));
    }
    return result;
  }

  GrpoObjective objective(const GenerationPlan& plan = {.generation_batch = 4}) {
    return GrpoObjective(config_, plan, drawn_, [this](int64_t step) {
      drawn_->step = step;
      return rows({{0, 1}, {2, 3}});
    });
  }

  struct Step {
    double loss = 0;
    std::map<int64_t, std::vector<double>> gradients;  // by completion
    std::map<int64_t, std::vector<double>> of_entropy;
    std::map<std::string, double> values;
  };
  // One step over these micro-batches.
  Step run(GrpoObjective& objective, const std::vector<std::vector<int64_t>>& micro_batches) {
    const std::vector<data::Batch> batches = rows(micro_batches);
    objective.begin_step(model_, 1, batches, true);
    Step step;
    for (size_t m = 0; m < batches.size(); ++m) {
      const data::Batch& batch = batches[m];
      ModelInput input;
      input.labels = tensor(batch.labels, {batch.batch, batch.seq});
      ModelOutput output = model_.forward(input);
      output.scores->log_probs.set_requires_grad(true);
      output.scores->entropy.set_requires_grad(true);
      const Tensor log_probs = output.scores->log_probs;
      const Tensor entropy = output.scores->entropy;
      const Tensor part = objective.part(static_cast<int64_t>(m), batch, output);
      step.loss += part.item();
      part.backward();
      for (const CompletionPlace& place : completion_places(batch)) {
        step.gradients[place.number] = values_at(log_probs.grad(), place);
        if (entropy.grad().defined()) {
          step.of_entropy[place.number] = values_at(entropy.grad(), place);
        }
      }
    }
    for (const auto& [name, value] : objective.finish_step()) {
      step.values[name] = value;
    }
    return step;
  }
  Step run(const std::vector<std::vector<int64_t>>& micro_batches) {
    GrpoObjective all = objective();
    return run(all, micro_batches);
  }

  // The losses of the completions' tokens, not normalised.
  std::vector<double> sums() const {
    std::vector<double> result;
    for (int64_t i = 0; i < 4; ++i) {
      const auto ids = batch_.completions.ids(i);
      std::vector<double> now;
      for (auto t = static_cast<size_t>(batch_.completions.prompt_tokens(i)); t < ids.size(); ++t) {
        now.push_back(static_cast<double>(static_cast<float>(ids[t]) * -0.1F));
      }
      const bool masked = config_.post_training_config.mask_truncated_completions &&
                          batch_.truncated[static_cast<size_t>(i)];
      if (masked) {
        now.clear();
      }
      result.push_back(PolicyLoss(config_.post_training_config)(
                           {.advantage = batch_.advantages[static_cast<size_t>(i)],
                            .log_probs = now,
                            .old = batch_.old_log_probs.of(i).first(now.size()),
                            .reference = {},
                            .kept = {}})
                           .loss);
    }
    return result;
  }

  AllConfig config_;
  TableModel model_;
  RolloutBatch batch_ = four_completions(true);
  std::shared_ptr<DrawnRollouts> drawn_ =
      std::make_shared<DrawnRollouts>(DrawnRollouts{.batch = &batch_, .step = 0});
};

TEST_F(GrpoObjectiveTest, NormalisedOverTheWholeStep) {
  const std::vector<double> lengths = {2, 3, 1, 4};
  const std::map<std::string, std::function<double(const std::vector<double>&)>> expected = {
      {"grpo", [&](const auto& s) { return (s[0] / 2 + s[1] / 3 + s[2] / 1 + s[3] / 4) / 4; }},
      {"sapo", [&](const auto& s) { return (s[0] / 2 + s[1] / 3 + s[2] / 1 + s[3] / 4) / 4; }},
      {"bnpo", [](const auto& s) { return (s[0] + s[1] + s[2] + s[3]) / 10; }},
      {"dapo", [](const auto& s) { return (s[0] + s[1] + s[2] + s[3]) / 10; }},
      {"cispo", [](const auto& s) { return (s[0] + s[1] + s[2] + s[3]) / 10; }},
      {"vespo", [](const auto& s) { return (s[0] + s[1] + s[2] + s[3]) / 10; }},
      {"dr_grpo", [](const auto& s) { return (s[0] + s[1] + s[2] + s[3]) / (4 * 5); }},
      {"luspo", [](const auto& s) { return (s[0] + s[1] + s[2] + s[3]) / 4; }}};
  for (const auto& [name, formula] : expected) {
    config_.post_training_config.loss_type = {name};
    const double wanted = formula(sums());
    const Step whole = run({{0, 1, 2, 3}});
    EXPECT_NEAR(whole.loss, wanted, 1e-9) << name;
    // Whatever the micro-batches, also where they cut groups.
    for (const Step& divided :
         {run({{0, 1}, {2, 3}}), run({{0}, {1, 2, 3}}), run({{3}, {2}, {1}, {0}})}) {
      EXPECT_NEAR(divided.loss, wanted, 1e-9) << name;
      EXPECT_EQ(divided.gradients, whole.gradients) << name;
      for (const auto& [key, value] : whole.values) {
        EXPECT_NEAR(divided.values.at(key), value, 1e-12) << name << " " << key;
      }
    }
  }
}

// Half of a generation batch has half of its tokens' weight, however many these are.
TEST_F(GrpoObjectiveTest, AStepsShareOfTheGenerationBatch) {
  const std::vector<double> s = sums();
  GrpoObjective halves = objective({.generation_batch = 4, .steps_per_generation = 2});
  EXPECT_NEAR(run(halves, {{0, 1}}).loss, (s[0] + s[1]) / (10 * 0.5), 1e-9);
  config_.post_training_config.loss_type = {"bnpo"};
  GrpoObjective own = objective({.generation_batch = 4, .steps_per_generation = 2});
  EXPECT_NEAR(run(own, {{0, 1}}).loss, (s[0] + s[1]) / 5, 1e-9);
}

TEST_F(GrpoObjectiveTest, MaskedCompletionsCountAsCompletions) {
  config_.post_training_config.mask_truncated_completions = true;
  std::vector<double> s = sums();
  EXPECT_EQ(s[2], 0);
  Step step = run({{0, 1}, {2, 3}});
  EXPECT_NEAR(step.loss, (s[0] + s[1] + s[3]) / 9, 1e-9);
  EXPECT_EQ(step.gradients.at(2), std::vector<double>{0});
  EXPECT_NEAR(step.values.at("entropy"), 1 + 0.5 * (3 + 4 + 5 + 6 + 4 + 3 + 9 + 2 + 4) / 9, 1e-6);
  config_.post_training_config.loss_type = {"grpo"};
  s = sums();
  EXPECT_NEAR(run({{0, 1, 2, 3}}).loss, (s[0] / 2 + s[1] / 3 + s[3] / 4) / 4, 1e-9);
}

// Advantages are +-0.7 (1, 0) and -+ (0.5, 2). Old values leave ratios 0.74 at even positions of a
// row's sequence, 1.35 at odd ones.
TEST_F(GrpoObjectiveTest, SharesOfClippedRatios) {
  const Step step = run({{0, 1}, {2, 3}});
  // With A > 0: completions 0 (positions 2, 3: one is above) and 3 (positions 1 to 4: two are).
  EXPECT_NEAR(step.values.at("clip_ratio/high_mean"), 3.0 / 10, 1e-12);
  EXPECT_NEAR(step.values.at("clip_ratio/high_max"), 0.5, 1e-12);
  // With A < 0: completions 1 (positions 2, 3, 4: two are below) and 2 (position 1: none).
  EXPECT_NEAR(step.values.at("clip_ratio/low_mean"), 2.0 / 10, 1e-12);
  EXPECT_NEAR(step.values.at("clip_ratio/low_min"), 0, 1e-12);
  EXPECT_NEAR(step.values.at("clip_ratio/region_mean"), 5.0 / 10, 1e-12);
  EXPECT_EQ(step.values.count("kl"), 0U);
  EXPECT_EQ(step.values.count("policy_loss"), 0U);
  EXPECT_EQ(step.values.at("reward"), 0.875);
}

TEST_F(GrpoObjectiveTest, EntropyBonus) {
  const double without = run({{0, 1, 2, 3}}).loss;
  config_.post_training_config.entropy_coef = 0.02;
  const Step step = run({{0, 1}, {2, 3}});
  const double mean = 1 + 0.5 * (3 + 4 + 5 + 6 + 4 + 8 + 3 + 9 + 2 + 4) / 10;
  EXPECT_NEAR(step.loss, without - 0.02 * mean, 1e-7);
  EXPECT_NEAR(step.values.at("policy_loss"), without, 1e-9);
  EXPECT_EQ(step.values.at("entropy_coef"), 0.02);
  EXPECT_NEAR(step.of_entropy.at(1)[2], -0.02 / 10, 1e-9);
}

// Labels 3 4 5 6 4 8 3 9 2 4: of their entropies the upper half are those of 5, 6, 8, 9 and all 4s,
// as the median is that of a 4.
TEST_F(GrpoObjectiveTest, TokensOfTheHighestEntropy) {
  config_.post_training_config.top_entropy_quantile = 0.5;
  config_.post_training_config.entropy_coef = 0.02;
  batch_.old_log_probs = {};
  const Step step = run({{0, 1}, {2, 3}});
  EXPECT_EQ(model_.passes, 4);
  const auto is_zero = [&](int64_t completion) {
    std::vector<bool> zero;
    for (const double value : step.gradients.at(completion)) {
      zero.push_back(value == 0);
    }
    return zero;
  };
  EXPECT_THAT(is_zero(0), ::testing::ElementsAre(true, false));
  EXPECT_THAT(is_zero(1), ::testing::ElementsAre(false, false, false));
  EXPECT_THAT(is_zero(2), ::testing::ElementsAre(false));
  EXPECT_THAT(is_zero(3), ::testing::ElementsAre(true, false, true, false));
  EXPECT_NEAR(step.of_entropy.at(3)[1], -0.02 / 7, 1e-9);
  EXPECT_EQ(step.of_entropy.at(3)[0], 0);
}

// Without stored ones the values of the first pass stay those that later steps are held against.
TEST_F(GrpoObjectiveTest, OldLogProbsOfTheFirstPass) {
  batch_.old_log_probs = {};
  GrpoObjective twice = objective({.generation_batch = 4, .num_iterations = 2});
  const Step first = run(twice, {{0, 1}, {2, 3}});
  EXPECT_EQ(first.values.at("clip_ratio/region_mean"), 0);
  model_.shift = 0.3;  // an update has made all of them less likely: ratios of 0.74
  drawn_->step = 1;
  const Step second = run(twice, {{0, 1}, {2, 3}});
  EXPECT_NEAR(second.values.at("clip_ratio/low_mean"), 4.0 / 10, 1e-12);
  drawn_->step = 2;  // new completions
  EXPECT_EQ(run(twice, {{0, 1}, {2, 3}}).values.at("clip_ratio/region_mean"), 0);
}

TEST_F(GrpoObjectiveTest, OldLogProbsOfLaterPartsAreThoseBeforeTheFirst) {
  batch_.old_log_probs = {};
  GrpoObjective parts = objective({.generation_batch = 4, .steps_per_generation = 2});
  EXPECT_EQ(run(parts, {{0, 1}}).values.at("clip_ratio/region_mean"), 0);
  EXPECT_EQ(drawn_->step, 0);
  model_.shift = 0.3;
  drawn_->step = 1;
  const Step second = run(parts, {{2, 3}});
  EXPECT_NEAR(second.values.at("clip_ratio/low_mean"), 1.0 / 5, 1e-12);
}

TEST_F(GrpoObjectiveTest, WhatNobodyHasKept) {
  batch_.old_log_probs = {};
  drawn_->step = 3;
  GrpoObjective resumed = objective({.generation_batch = 4, .num_iterations = 2});
  EXPECT_ERROR(run(resumed, {{0, 1, 2, 3}}), ValueError, "a checkpoint of a multiple of 2 steps");
  EXPECT_ERROR(objective().begin_step(model_, 1, {}, false), ValueError, "no evaluation");
}

TEST(Quantile, IsLinearBetweenValues) {
  EXPECT_EQ(quantile({}, 0.5), 0);
  EXPECT_DOUBLE_EQ(quantile({3, 1, 2}, 0.5), 2);
  EXPECT_DOUBLE_EQ(quantile({4, 1, 2, 3}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile({4, 1, 2, 3}, 0.8), 3.4);
  EXPECT_DOUBLE_EQ(quantile({4, 1, 2, 3}, 1), 4);
  EXPECT_DOUBLE_EQ(quantile({4, 1, 2, 3}, 0), 1);
}

TEST(LossWithGradients, RunsBackwards) {
  Tensor x = full({2}, 1.0);
  Tensor y = full({3}, 1.0);
  x.set_requires_grad(true);
  y.set_requires_grad(true);
  const Tensor loss =
      loss_with_gradients(4.5, {x, y}, {tensor(std::vector<float>{1, -2}, {2}), Tensor()});
  EXPECT_EQ(loss.item(), 4.5);
  (loss * 3).backward();
  EXPECT_EQ(x.grad().data<float>()[1], -6);
  EXPECT_FALSE(y.grad().defined());
  EXPECT_THROW(loss_with_gradients(1, {x, y}, {}), ValueError);
}

}  // namespace
}  // namespace tapestry::post_training

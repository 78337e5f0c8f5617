#include "parallel_core/post_training/grpo/policy_loss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

namespace tapestry::post_training {
namespace {

// Ratios of about 0.68, 0.9, 1, 1.12 and 1.65.
const std::vector<double> kOld = {-1.0, -2.0, -0.5, -3.0, -1.5};
const std::vector<double> kNow = {-1.38, -2.1, -0.5, -2.89, -1.0};
const std::vector<double> kReference = {-1.2, -1.9, -0.9, -2.5, -1.6};

PostTrainingConfig config_of(const std::string& loss) {
  PostTrainingConfig config;
  config.loss_type = {loss};
  config.beta = 0.0;
  return config;
}

CompletionScores scores_of(double advantage, const std::vector<double>& now = kNow) {
  return {
      .advantage = advantage, .log_probs = now, .old = kOld, .reference = kReference, .kept = {}};
}

double sum_over_tokens(const std::function<double(size_t)>& term) {
  double sum = 0;
  for (size_t t = 0; t < kNow.size(); ++t) {
    sum += term(t);
  }
  return sum;
}

double ratio(size_t t) { return std::exp(kNow[t] - kOld[t]); }

double clipped_term(double r, double advantage, double low, double high) {
  return -std::min(r * advantage, std::min(std::max(r, 1 - low), 1 + high) * advantage);
}

// The gradient is that of the value, where nothing stands still.
void expect_gradient(const PostTrainingConfig& config,
                     double advantage,
                     const std::vector<double>& now = kNow) {
  const PolicyLoss loss(config);
  const CompletionPolicyLoss at = loss(scores_of(advantage, now));
  for (size_t t = 0; t < now.size(); ++t) {
    constexpr double kStep = 1e-6;
    std::vector<double> moved = now;
    moved[t] += kStep;
    const double above = loss(scores_of(advantage, moved)).loss;
    moved[t] -= 2 * kStep;
    const double below = loss(scores_of(advantage, moved)).loss;
    EXPECT_NEAR(at.gradient[t], (above - below) / (2 * kStep), 1e-8) << "token " << t;
  }
}

TEST(PolicyLoss, ClippedOnBothSides) {
  for (const char* name : {"grpo", "bnpo", "dr_grpo", "dapo", "luspo"}) {
    PostTrainingConfig config = config_of(name);
    config.epsilon = 0.2;
    config.epsilon_high = 0.28;
    for (const double advantage : {1.5, -0.7}) {
      const CompletionPolicyLoss loss = PolicyLoss(config)(scores_of(advantage));
      EXPECT_NEAR(loss.loss, sum_over_tokens([&](size_t t) {
                    return clipped_term(ratio(t), advantage, 0.2, 0.28);
                  }),
                  1e-12);
      expect_gradient(config, advantage);
    }
  }
}

TEST(PolicyLoss, EpsilonHighIsEpsilonUnlessGiven) {
  const CompletionPolicyLoss loss = PolicyLoss(config_of("dapo"))(scores_of(2));
  EXPECT_NEAR(loss.loss,
              sum_over_tokens([&](size_t t) { return clipped_term(ratio(t), 2, 0.2, 0.2); }),
              1e-12);
  EXPECT_EQ(loss.ratios, 5);
  EXPECT_EQ(loss.clipped_low, 0);
  EXPECT_EQ(loss.clipped_high, 1);
  const CompletionPolicyLoss negative = PolicyLoss(config_of("dapo"))(scores_of(-2));
  EXPECT_EQ(negative.clipped_low, 1);
  EXPECT_EQ(negative.clipped_high, 0);
}

// The first pass over what was just sampled: the ratio is 1, the gradient is not 0.
TEST(PolicyLoss, OnPolicy) {
  CompletionScores scores = scores_of(1.5);
  scores.old = {};
  const CompletionPolicyLoss loss = PolicyLoss(config_of("grpo"))(scores);
  EXPECT_DOUBLE_EQ(loss.loss, -1.5 * 5);
  EXPECT_EQ(loss.gradient, std::vector<double>(5, -1.5));
}

TEST(PolicyLoss, DeltaBoundsTheRatio) {
  PostTrainingConfig config = config_of("bnpo");
  config.delta = 1.4;
  const CompletionPolicyLoss loss = PolicyLoss(config)(scores_of(-1));
  EXPECT_NEAR(loss.loss, sum_over_tokens([&](size_t t) {
                return std::max(std::min(ratio(t), 1.4), std::min(std::max(ratio(t), 0.8), 1.2));
              }),
              1e-12);
  EXPECT_EQ(loss.gradient[4], 0);  // beyond it
  expect_gradient(config, -1);
  expect_gradient(config, 1);
}

TEST(PolicyLoss, RatiosOfSequences) {
  PostTrainingConfig config = config_of("grpo");
  config.importance_sampling_level = "sequence";
  const double mean = sum_over_tokens([&](size_t t) { return kNow[t] - kOld[t]; }) / 5;
  for (const double advantage : {1.5, -0.7}) {
    const CompletionPolicyLoss loss = PolicyLoss(config)(scores_of(advantage));
    EXPECT_NEAR(loss.loss, -5 * std::exp(mean) * advantage, 1e-12);
    EXPECT_EQ(loss.ratios, 1);
    expect_gradient(config, advantage);
  }
  config.epsilon = 0.001;  // the sequence is clipped as a whole
  const CompletionPolicyLoss clipped = PolicyLoss(config)(scores_of(1));
  EXPECT_EQ(clipped.clipped_high, 1);
  EXPECT_EQ(clipped.gradient, std::vector<double>(5, 0.0));
}

// What is without gradient is held: -w A log p has the gradient -w A.
TEST(PolicyLoss, Cispo) {
  PostTrainingConfig config = config_of("cispo");
  config.epsilon_high = 1.1;  // the bound itself
  const CompletionPolicyLoss loss = PolicyLoss(config)(scores_of(2));
  EXPECT_NEAR(loss.loss,
              sum_over_tokens([&](size_t t) { return -std::min(ratio(t), 1.1) * 2 * kNow[t]; }),
              1e-12);
  EXPECT_EQ(loss.clipped_high, 2);
  for (size_t t = 0; t < kNow.size(); ++t) {
    EXPECT_NEAR(loss.gradient[t], -std::min(ratio(t), 1.1) * 2, 1e-12);
  }
  config.epsilon_high.reset();
  EXPECT_NEAR(PolicyLoss(config)(scores_of(2)).gradient[0], -0.4, 1e-12);
}

TEST(PolicyLoss, Sapo) {
  PostTrainingConfig config = config_of("sapo");
  config.sapo_temperature_pos = 1.3;
  config.sapo_temperature_neg = 2.0;
  for (const double advantage : {1.5, -0.7}) {
    const double tau = advantage > 0 ? 1.3 : 2.0;
    EXPECT_NEAR(PolicyLoss(config)(scores_of(advantage)).loss, sum_over_tokens([&](size_t t) {
                  return -advantage * 4 / tau / (1 + std::exp(-tau * (ratio(t) - 1)));
                }),
                1e-12);
    expect_gradient(config, advantage);
  }
}

TEST(PolicyLoss, Vespo) {
  const double log_ratio = sum_over_tokens([&](size_t t) { return kNow[t] - kOld[t]; });
  const double w = std::exp(log_ratio);
  for (const double advantage : {1.5, 0.0, -0.7}) {
    const double k = advantage >= 0 ? 2 : 3;
    const double lambda = advantage >= 0 ? 3 : 2;
    const double phi = std::exp(lambda) * std::pow(w, k) * std::exp(-lambda * w);
    const CompletionPolicyLoss loss = PolicyLoss(config_of("vespo"))(scores_of(advantage));
    EXPECT_NEAR(loss.phi, phi, 1e-12);
    EXPECT_NEAR(loss.loss, sum_over_tokens([&](size_t t) { return -phi * advantage * kNow[t]; }),
                1e-12);
    for (const double value : loss.gradient) {
      EXPECT_NEAR(value, -phi * advantage, 1e-12);
    }
  }
  // Sequences that are far from the policy weigh nothing, and never more than can be told.
  const std::vector<double> far(5, -90.0);
  EXPECT_NEAR(PolicyLoss(config_of("vespo"))(scores_of(1, far)).phi, std::exp(3.0) * 1e-16, 1e-16);
}

TEST(PolicyLoss, DivergenceFromTheReference) {
  PostTrainingConfig config = config_of("grpo");
  config.beta = 0.3;
  const auto divergence = [](size_t t) {
    const double d = kReference[t] - kNow[t];
    return std::exp(d) - d - 1;
  };
  config.use_bias_correction_kl = false;
  CompletionPolicyLoss loss = PolicyLoss(config)(scores_of(0));
  EXPECT_NEAR(loss.kl, sum_over_tokens(divergence), 1e-12);
  EXPECT_NEAR(loss.loss, 0.3 * sum_over_tokens(divergence), 1e-12);
  expect_gradient(config, 0);
  config.use_bias_correction_kl = true;
  loss = PolicyLoss(config)(scores_of(0));
  EXPECT_NEAR(loss.kl, sum_over_tokens([&](size_t t) { return ratio(t) * divergence(t); }), 1e-12);
  expect_gradient(config, -1);
  config.importance_sampling_level = "sequence";
  expect_gradient(config, 1.2);
}

TEST(PolicyLoss, TokensThatAreNotKept) {
  PostTrainingConfig config = config_of("grpo");
  config.beta = 0.3;
  const std::vector<uint8_t> kept = {1, 0, 0, 1, 0};
  CompletionScores scores = scores_of(-1);
  const CompletionPolicyLoss all = PolicyLoss(config)(scores);
  scores.kept = kept;
  const CompletionPolicyLoss some = PolicyLoss(config)(scores);
  double dropped = 0;
  for (const size_t t : {1, 2, 4}) {
    dropped += clipped_term(ratio(t), -1, 0.2, 0.2);
  }
  EXPECT_NEAR(all.loss - some.loss, dropped, 1e-12);
  EXPECT_NEAR(all.kl, some.kl, 1e-12);  // the divergence counts all the same
  EXPECT_NE(some.gradient[1], 0);
  EXPECT_EQ(all.clipped_low, some.clipped_low);
}

TEST(PolicyLoss, FarFromThePolicyThatHasSampled) {
  PostTrainingConfig config = config_of("grpo");
  const std::vector<double> far = {-1.5, -2.5, -1.0, -3.5, -2.0};  // 0.5 below
  config.off_policy_mask_threshold = 0.4;
  EXPECT_EQ(PolicyLoss(config)(scores_of(-1, far)).loss, 0);
  EXPECT_EQ(PolicyLoss(config)(scores_of(-1, far)).gradient, std::vector<double>(5, 0.0));
  EXPECT_NE(PolicyLoss(config)(scores_of(1, far)).loss, 0);
  config.off_policy_mask_threshold = 0.6;
  EXPECT_NE(PolicyLoss(config)(scores_of(-1, far)).loss, 0);
}

TEST(PolicyLoss, NothingThatCounts) {
  for (const char* name : {"grpo", "cispo", "sapo", "vespo"}) {
    for (const char* level : {"token", "sequence"}) {
      PostTrainingConfig config = config_of(name);
      config.importance_sampling_level = level;
      const CompletionPolicyLoss loss = PolicyLoss(config)(
          {.advantage = 1, .log_probs = {}, .old = {}, .reference = {}, .kept = {}});
      EXPECT_EQ(loss.loss, 0);
      EXPECT_TRUE(loss.gradient.empty());
    }
  }
}

}  // namespace
}  // namespace tapestry::post_training

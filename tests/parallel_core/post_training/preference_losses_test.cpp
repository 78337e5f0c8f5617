#include "parallel_core/post_training/losses/preference_losses.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"

namespace tapestry::post_training {
namespace {

// Log ratios 1.25 and -0.75, means 0.25 and -0.375.
constexpr PairLogProbs kPair = {.chosen = -10,
                                .rejected = -8,
                                .reference_chosen = -11.25,
                                .reference_rejected = -7.25,
                                .chosen_tokens = 5,
                                .rejected_tokens = 2};

PostTrainingConfig dpo(std::vector<std::string> losses, double beta = 0.3) {
  PostTrainingConfig config;
  config.task = "dpo";
  config.beta = beta;
  config.loss_type = std::move(losses);
  return config;
}

double sigma(double x) { return 1 / (1 + std::exp(-x)); }

struct DpoCase {
  const char* loss;
  double smoothing;
  double value;
};

// beta 0.3: z = 0.6; the formulas of the losses written out.
const std::vector<DpoCase>& dpo_cases() {
  static const double z = 0.6;
  static const double c = 0.375;   // beta times the log ratio
  static const double r = -0.225;  // of either completion
  static const double w = sigma(z / 0.05);
  static const double p = 1 / (2 * 0.3);
  static const std::vector<DpoCase> cases = {
      {"sigmoid", 0, -std::log(sigma(z))},
      {"hinge", 0, 1 - z},
      {"ipo", 0, std::pow(0.25 + 0.375 - p, 2)},
      {"sigmoid_norm", 0, -std::log(sigma(0.3 * 0.625))},
      {"robust", 0.1, (-0.9 * std::log(sigma(z)) + 0.1 * std::log(sigma(-z))) / 0.8},
      {"exo_pair", 0.1,
       sigma(z) * (std::log(sigma(z)) - std::log(0.9)) +
           sigma(-z) * (std::log(sigma(-z)) - std::log(0.1))},
      {"nca_pair", 0, -std::log(sigma(c)) - 0.5 * std::log(sigma(-c)) - 0.5 * std::log(sigma(-r))},
      {"bco_pair", 0, -std::log(sigma(c)) - std::log(sigma(-r))},
      {"sppo_hard", 0, std::pow(1.25 - p, 2) + std::pow(-0.75 + p, 2)},
      {"apo_zero", 0, 1 - sigma(c) + sigma(r)},
      {"apo_down", 0, sigma(c) + 1 - sigma(z)},
      {"discopop", 0, (1 - w) * -std::log(sigma(z)) + w * std::exp(-z)},
  };
  return cases;
}

// Derivatives by differences.
PairLoss differences(const std::function<double(const PairLogProbs&)>& value) {
  constexpr double kStep = 1e-5;
  const auto slope = [&](double PairLogProbs::*member) {
    PairLogProbs up = kPair;
    PairLogProbs down = kPair;
    up.*member += kStep;
    down.*member -= kStep;
    return (value(up) - value(down)) / (2 * kStep);
  };
  return {value(kPair), slope(&PairLogProbs::chosen), slope(&PairLogProbs::rejected)};
}

void expect_derivatives(const PairLoss& loss, const PairLoss& expected) {
  EXPECT_NEAR(loss.by_chosen, expected.by_chosen, 1e-8);
  EXPECT_NEAR(loss.by_rejected, expected.by_rejected, 1e-8);
}

TEST(DpoLoss, EveryTypeHasItsFormulaAndDerivatives) {
  for (const DpoCase& c : dpo_cases()) {
    SCOPED_TRACE(c.loss);
    PostTrainingConfig config = dpo({c.loss});
    config.label_smoothing = c.smoothing;
    const PairLoss loss = dpo_loss(c.loss, config, kPair);
    EXPECT_NEAR(loss.value, c.value, 1e-12);
    expect_derivatives(loss, differences([&](const PairLogProbs& pair) {
                         return dpo_loss(c.loss, config, pair).value;
                       }));
  }
  EXPECT_THROW(dpo_loss("aot", dpo({"aot"}), kPair), ValueError);
}

TEST(DpoLoss, DivergencesAreZeroAtZero) {
  const auto loss = [](const char* divergence, double alpha, const PairLogProbs& pair) {
    PostTrainingConfig config = dpo({"sigmoid"});
    config.f_divergence_type = divergence;
    config.f_alpha_divergence_coef = alpha;
    return dpo_loss("sigmoid", config, pair);
  };
  struct Divergence {
    const char* name;
    double alpha;
    std::function<double(double)> score;
  };
  const std::vector<Divergence> divergences = {
      {"reverse_kl", 0.5, [](double r) { return r; }},
      {"forward_kl", 0.5, [](double r) { return 1 - std::exp(-r); }},
      {"js_divergence", 0.5, [](double r) { return std::log(2 * sigma(r)); }},
      {"alpha_divergence", 0.5, [](double r) { return (std::exp(-0.5 * r) - 1) / -0.5; }},
      {"alpha_divergence", 1, [](double r) { return r; }},
      {"alpha_divergence", 2, [](double r) { return std::exp(r) - 1; }},
  };
  for (const Divergence& d : divergences) {
    SCOPED_TRACE(d.name);
    const PairLoss got = loss(d.name, d.alpha, kPair);
    EXPECT_NEAR(got.value, -std::log(sigma(0.3 * (d.score(1.25) - d.score(-0.75)))), 1e-12);
    expect_derivatives(got, differences([&](const PairLogProbs& pair) {
                         return loss(d.name, d.alpha, pair).value;
                       }));
    EXPECT_NEAR(d.score(0), 0, 1e-15);
  }
}

TEST(DpoLoss, FarPairsStayFinite) {
  PostTrainingConfig config = dpo({"sigmoid"});
  config.f_divergence_type = "alpha_divergence";
  config.f_alpha_divergence_coef = 2;
  const PairLogProbs far = {.chosen = 0, .rejected = -3000, .reference_chosen = -900};
  const PairLoss held = dpo_loss("sigmoid", config, far);
  EXPECT_EQ(held.value, 0);
  EXPECT_EQ(held.by_chosen, 0);  // the exponent is held at 80
  const PairLogProbs wrong = {.chosen = -3000, .rejected = 0};
  const PairLoss steep = dpo_loss("sigmoid", dpo({"sigmoid"}), wrong);
  EXPECT_DOUBLE_EQ(steep.value, 900);
  EXPECT_DOUBLE_EQ(steep.by_chosen, -0.3);
  EXPECT_DOUBLE_EQ(steep.by_rejected, 0.3);
}

TEST(DpoLoss, SeveralAreWeighedAndAdded) {
  PostTrainingConfig config = dpo({"sigmoid", "bco_pair", "sft", "aot"});
  config.loss_weights = {0.8, 0.2, 5, 7};
  const PairLoss sum = weighted_dpo_loss(config, kPair);
  const PairLoss one = dpo_loss("sigmoid", config, kPair);
  const PairLoss two = dpo_loss("bco_pair", config, kPair);
  EXPECT_DOUBLE_EQ(sum.value, 0.8 * one.value + 0.2 * two.value);
  EXPECT_DOUBLE_EQ(sum.by_chosen, 0.8 * one.by_chosen + 0.2 * two.by_chosen);
  EXPECT_DOUBLE_EQ(sum.by_rejected, 0.8 * one.by_rejected + 0.2 * two.by_rejected);
}

TEST(AotLoss, IsSmoothed) {
  PostTrainingConfig config = dpo({"aot"}, 0.2);
  config.label_smoothing = 0.1;
  const CompletionLoss loss = aot_loss(config, 3);
  EXPECT_NEAR(loss.value, -0.9 * std::log(sigma(0.6)) - 0.1 * std::log(sigma(-0.6)), 1e-12);
  EXPECT_NEAR(loss.derivative, 0.2 * (0.1 * sigma(0.6) - 0.9 * sigma(-0.6)), 1e-12);
}

TEST(KtoLoss, IsHeldAgainstThePoint) {
  PostTrainingConfig config;
  config.task = "kto";
  config.beta = 0.5;
  config.desirable_weight = 1.3;
  config.undesirable_weight = 0.7;
  config.loss_type = {"kto"};
  const double high = sigma(0.5 * (3 - 1.2));
  CompletionLoss loss = kto_loss(config, 3, /*desirable=*/true, 1.2);
  EXPECT_NEAR(loss.value, 1.3 * (1 - high), 1e-12);
  EXPECT_NEAR(loss.derivative, -1.3 * 0.5 * high * (1 - high), 1e-12);
  loss = kto_loss(config, 3, /*desirable=*/false, 1.2);
  EXPECT_NEAR(loss.value, 0.7 * high, 1e-12);
  EXPECT_NEAR(loss.derivative, 0.7 * 0.5 * high * (1 - high), 1e-12);
  config.loss_type = {"apo_zero_unpaired"};
  EXPECT_NEAR(kto_loss(config, 3, true, 1.2).value, 1.3 * (1 - sigma(1.5)), 1e-12);
  EXPECT_NEAR(kto_loss(config, 3, false, 1.2).value, 0.7 * sigma(1.5), 1e-12);
}

TEST(OrpoLoss, IsOfTheOddsOfMeans) {
  const auto odds = [](double mean) { return mean - std::log(1 - std::exp(mean)); };
  const OrpoLoss got = orpo_loss(0.25, kPair);
  const double omega = odds(-2) - odds(-4);
  EXPECT_NEAR(got.log_odds, omega, 1e-12);
  EXPECT_NEAR(got.log_sigmoid_odds, std::log(sigma(omega)), 1e-12);
  EXPECT_NEAR(got.loss.value, -0.25 * std::log(sigma(omega)), 1e-12);
  expect_derivatives(got.loss, differences([](const PairLogProbs& pair) {
                       return orpo_loss(0.25, pair).loss.value;
                     }));
}

TEST(OrpoLoss, CertainCompletionsStayFinite) {
  const PairLogProbs certain = {.chosen = -1e-4, .chosen_tokens = 1000, .rejected_tokens = 3};
  const OrpoLoss got = orpo_loss(0.1, certain);
  EXPECT_TRUE(std::isfinite(got.log_odds));
  EXPECT_TRUE(std::isfinite(got.loss.by_chosen));
  EXPECT_EQ(got.loss.by_rejected, 0);  // of probability 1
}

TEST(CpoLoss, EveryTypeHasItsFormulaAndDerivatives) {
  PostTrainingConfig config;
  config.task = "cpo";
  config.simpo_gamma = 0.5;
  struct CpoCase {
    const char* loss;
    double alpha;
    double smoothing;
    double value;
  };
  const auto power = [](double l, double alpha) { return (1 - std::exp(-alpha * l)) / alpha; };
  const double by_power = 2 * (power(-10, 0.2) - power(-8, 0.2));
  const double means_by_power = 2 * (power(-2, 0.2) - power(-4, 0.2)) - 0.5;
  const CpoCase cases[] = {
      {"sigmoid", 0, 0, -std::log(sigma(-4))},
      {"sigmoid", 0, 0.1, -0.9 * std::log(sigma(-4)) - 0.1 * std::log(sigma(4))},
      {"hinge", 0, 0, 5},
      {"ipo", 0, 0, std::pow(2 - 0.25, 2)},
      {"simpo", 0, 0, -std::log(sigma(3.5))},
      {"alphapo", 0.2, 0, -std::log(sigma(means_by_power))},
      {"sigmoid", 0.2, 0, -std::log(sigma(by_power))},
  };
  for (const CpoCase& c : cases) {
    SCOPED_TRACE(c.loss);
    config.beta = 2;
    config.alpha = c.alpha;
    config.label_smoothing = c.smoothing;
    config.loss_type = {c.loss};
    const CpoLoss got = cpo_loss(config, kPair);
    EXPECT_NEAR(got.loss.value, c.value, 1e-10 * std::max(1.0, c.value));
    expect_derivatives(got.loss, differences([&](const PairLogProbs& pair) {
                         return cpo_loss(config, pair).loss.value;
                       }));
    const double l = cpo_takes_means(c.loss) ? -2 : -10;
    EXPECT_NEAR(got.chosen, c.alpha == 0 ? l : power(l, c.alpha), 1e-12);
  }
}

TEST(CpoLoss, AlphapoHasNoCrossEntropy) {
  PostTrainingConfig config;
  config.cpo_alpha = 0.7;
  config.loss_type = {"simpo"};
  EXPECT_EQ(cpo_nll_weight(config), 0.7);
  config.loss_type = {"alphapo"};
  EXPECT_EQ(cpo_nll_weight(config), 0);
}

}  // namespace
}  // namespace tapestry::post_training

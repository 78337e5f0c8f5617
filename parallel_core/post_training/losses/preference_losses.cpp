#include "parallel_core/post_training/losses/preference_losses.h"

#include <cmath>
#include <numbers>

#include "autograd/tensor/error.h"
#include "parallel_core/post_training/losses/dual.h"

namespace tapestry::post_training {

namespace {

PairLoss pair_loss(const Dual& loss) { return {loss.value, loss.first, loss.second}; }

// The score of a log ratio that a divergence compares; 0 at 0 for all of them.
Dual divergence_score(const PostTrainingConfig& config, const Dual& log_ratio) {
  if (config.f_divergence_type == "forward_kl") {
    return -expm1(-log_ratio);
  }
  if (config.f_divergence_type == "js_divergence") {
    return log_sigmoid(log_ratio) + std::numbers::ln2;
  }
  const double order = config.f_alpha_divergence_coef - 1;
  if (config.f_divergence_type == "alpha_divergence" && std::abs(order) >= 1e-6) {
    return expm1(at_most(log_ratio * order, 80)) / order;
  }
  return log_ratio;  // reverse_kl, which alpha_divergence is at alpha = 1
}

// Cross entropy of sigmoid(z) with a label that is wrong in a share `smoothing` of the cases.
Dual smoothed(const Dual& z, double smoothing) {
  return -((1 - smoothing) * log_sigmoid(z)) - smoothing * log_sigmoid(-z);
}

double at_least_one(int64_t tokens) { return static_cast<double>(tokens > 0 ? tokens : 1); }

Dual exo_pair(const Dual& z, double smoothing) {
  return sigmoid(z) * (log_sigmoid(z) - std::log1p(-smoothing)) +
         sigmoid(-z) * (log_sigmoid(-z) - std::log(smoothing));
}

Dual discopop(const Dual& z, double temperature) {
  const Dual share = sigmoid(z / temperature);
  return (1 - share) * -log_sigmoid(z) + share * exp(-z);
}

}  // namespace

bool compares_sorted(std::string_view loss_type) {
  return loss_type == "aot" || loss_type == "aot_unpaired";
}

PairLoss dpo_loss(std::string_view loss_type,
                  const PostTrainingConfig& config,
                  const PairLogProbs& pair) {
  const double beta = config.beta.value();
  const double smoothing = config.label_smoothing;
  const Dual chosen(pair.chosen - pair.reference_chosen, 1, 0);
  const Dual rejected(pair.rejected - pair.reference_rejected, 0, 1);
  const Dual chosen_score = divergence_score(config, chosen);
  const Dual rejected_score = divergence_score(config, rejected);
  const Dual z = beta * (chosen_score - rejected_score);
  const Dual of_means = chosen_score / at_least_one(pair.chosen_tokens) -
                        rejected_score / at_least_one(pair.rejected_tokens);
  const auto loss = [&]() -> Dual {
    if (loss_type == "sigmoid") {
      return -log_sigmoid(z);
    }
    if (loss_type == "hinge") {
      return relu(1 - z);
    }
    if (loss_type == "ipo") {
      return square(of_means - 1 / (2 * beta));
    }
    if (loss_type == "sigmoid_norm") {
      return -log_sigmoid(beta * of_means);
    }
    if (loss_type == "robust") {
      return (smoothing * log_sigmoid(-z) - (1 - smoothing) * log_sigmoid(z)) / (1 - 2 * smoothing);
    }
    if (loss_type == "exo_pair") {
      return exo_pair(z, smoothing);
    }
    if (loss_type == "nca_pair") {
      return -log_sigmoid(beta * chosen) - 0.5 * log_sigmoid(-(beta * chosen)) -
             0.5 * log_sigmoid(-(beta * rejected));
    }
    if (loss_type == "bco_pair") {
      return -log_sigmoid(beta * chosen) - log_sigmoid(-(beta * rejected));
    }
    if (loss_type == "sppo_hard") {
      return square(chosen - 1 / (2 * beta)) + square(rejected + 1 / (2 * beta));
    }
    if (loss_type == "apo_zero") {
      return 1 - sigmoid(beta * chosen) + sigmoid(beta * rejected);
    }
    if (loss_type == "apo_down") {
      return sigmoid(beta * chosen) + 1 - sigmoid(z);
    }
    check<ValueError>(loss_type == "discopop", "dpo: '", loss_type, "' is no loss of a pair");
    return discopop(z, config.discopop_tau);
  };
  return pair_loss(loss());
}

CompletionLoss aot_loss(const PostTrainingConfig& config, double delta) {
  const double beta = config.beta.value();
  const Dual loss = smoothed(beta * Dual(delta, 1, 0), config.label_smoothing);
  return {loss.value, loss.first};
}

double loss_weight(const PostTrainingConfig& config, size_t i) {
  return config.loss_weights ? (*config.loss_weights)[i] : 1;
}

PairLoss weighted_dpo_loss(const PostTrainingConfig& config, const PairLogProbs& pair) {
  PairLoss sum;
  for (size_t i = 0; i < config.loss_type->size(); ++i) {
    const std::string& type = (*config.loss_type)[i];
    if (compares_sorted(type) || type == "sft") {
      continue;
    }
    const PairLoss loss = dpo_loss(type, config, pair);
    const double weight = loss_weight(config, i);
    sum.value += weight * loss.value;
    sum.by_chosen += weight * loss.by_chosen;
    sum.by_rejected += weight * loss.by_rejected;
  }
  return sum;
}

CompletionLoss kto_loss(const PostTrainingConfig& config,
                        double log_ratio,
                        bool desirable,
                        double kl) {
  const double point = config.loss_type->front() == "kto" ? kl : 0;
  const Dual z = config.beta.value() * (Dual(log_ratio, 1, 0) - point);
  const Dual loss =
      desirable ? config.desirable_weight * sigmoid(-z) : config.undesirable_weight * sigmoid(z);
  return {loss.value, loss.first};
}

namespace {

// ln(1 - e^x) for x < 0, to rounding at both ends.
Dual log_of_rest(const Dual& x) {
  const double rest = -std::expm1(x.value);
  const double value =
      x.value < -std::numbers::ln2 ? std::log1p(-std::exp(x.value)) : std::log(rest);
  return chain(x, value, -std::exp(x.value) / rest);
}

// Means of the completions' log-probabilities, by their sums.
struct PairMeans {
  Dual chosen;
  Dual rejected;
};
PairMeans means_of(const PairLogProbs& pair) {
  return {Dual(pair.chosen, 1, 0) / at_least_one(pair.chosen_tokens),
          Dual(pair.rejected, 0, 1) / at_least_one(pair.rejected_tokens)};
}

}  // namespace

OrpoLoss orpo_loss(double beta, const PairLogProbs& pair) {
  constexpr double kHighest = -1e-7;  // a probability of 1 has no odds
  const PairMeans means = means_of(pair);
  const Dual chosen = at_most(means.chosen, kHighest);
  const Dual rejected = at_most(means.rejected, kHighest);
  const Dual odds = (chosen - rejected) - (log_of_rest(chosen) - log_of_rest(rejected));
  const Dual log_share = log_sigmoid(odds);
  return {.loss = pair_loss(-(beta * log_share)),
          .log_odds = odds.value,
          .log_sigmoid_odds = log_share.value};
}

bool cpo_takes_means(std::string_view loss_type) {
  return loss_type == "ipo" || loss_type == "simpo" || loss_type == "alphapo";
}

double cpo_nll_weight(const PostTrainingConfig& config) {
  return config.loss_type->front() == "alphapo" ? 0 : config.cpo_alpha;
}

CpoLoss cpo_loss(const PostTrainingConfig& config, const PairLogProbs& pair) {
  const std::string& type = config.loss_type->front();
  const double beta = config.beta.value();
  PairMeans of{Dual(pair.chosen, 1, 0), Dual(pair.rejected, 0, 1)};
  if (cpo_takes_means(type)) {
    of = means_of(pair);
  }
  if (config.alpha != 0) {  // AlphaPO, arXiv:2501.03884
    of.chosen = -expm1(of.chosen * -config.alpha) / config.alpha;
    of.rejected = -expm1(of.rejected * -config.alpha) / config.alpha;
  }
  const Dual z = of.chosen - of.rejected;
  const auto loss = [&]() -> Dual {
    if (type == "hinge") {
      return relu(1 - beta * z);
    }
    if (type == "ipo") {
      return square(z - 1 / (2 * beta));
    }
    const double margin = type == "sigmoid" ? 0 : config.simpo_gamma / beta;
    return smoothed(beta * (z - margin), config.label_smoothing);
  };
  return {.loss = pair_loss(loss()), .chosen = of.chosen.value, .rejected = of.rejected.value};
}

}  // namespace tapestry::post_training

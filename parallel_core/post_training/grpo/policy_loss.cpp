#include "parallel_core/post_training/grpo/policy_loss.h"

#include <algorithm>
#include <cmath>

namespace tapestry::post_training {

namespace {

// Of vespo: bounds of a token's log ratio, and of a completion's.
constexpr double kMostLogRatio = 20;
const double kLeastLogWeight = std::log(1e-8);

double old_of(const CompletionScores& scores, size_t t) {
  return scores.old.empty() ? scores.log_probs[t] : scores.old[t];
}

double mean_log_ratio(const CompletionScores& scores) {
  double sum = 0;
  for (size_t t = 0; t < scores.log_probs.size(); ++t) {
    sum += scores.log_probs[t] - old_of(scores, t);
  }
  return sum / static_cast<double>(std::max<size_t>(scores.log_probs.size(), 1));
}

}  // namespace

PolicyLoss::PolicyLoss(const PostTrainingConfig& config)
    : sequence_level_(config.importance_sampling_level == "sequence"),
      config_(config),
      beta_(config.beta.value_or(0)),
      epsilon_high_(config.epsilon_high.value_or(config.epsilon)) {
  const std::string& loss = config.loss_type->front();
  kind_ = loss == "cispo"   ? Kind::kCispo
          : loss == "sapo"  ? Kind::kSapo
          : loss == "vespo" ? Kind::kVespo
                            : Kind::kClip;
}

PolicyLoss::Term PolicyLoss::clipped(double ratio, double advantage) const {
  const double low = 1 - config_.epsilon;
  const double high = 1 + epsilon_high_;
  const bool is_bounded = config_.delta && ratio > *config_.delta;
  const double first = (is_bounded ? *config_.delta : ratio) * advantage;
  const double second = std::clamp(ratio, low, high) * advantage;
  const double by_first = is_bounded ? 0 : advantage;
  const double by_second = ratio >= low && ratio <= high ? advantage : 0;
  // Where both are the same, each has half of the gradient, as torch.min.
  const double slope = first < second   ? by_first
                       : second < first ? by_second
                                        : 0.5 * (by_first + by_second);
  return {.value = -std::min(first, second), .by_ratio = -slope};
}

PolicyLoss::Term PolicyLoss::soft(double ratio, double advantage) const {
  const double temperature =
      advantage > 0 ? config_.sapo_temperature_pos : config_.sapo_temperature_neg;
  const double gate = 1 / (1 + std::exp(-temperature * (ratio - 1)));
  return {.value = -advantage * gate * 4 / temperature,
          .by_ratio = -advantage * gate * (1 - gate) * 4};
}

PolicyLoss::Term PolicyLoss::term(double ratio,
                                  double advantage,
                                  double phi,
                                  double log_prob) const {
  if (kind_ == Kind::kClip) {
    return clipped(ratio, advantage);
  }
  if (kind_ == Kind::kSapo) {
    return soft(ratio, advantage);
  }
  const double weight = kind_ == Kind::kVespo ? phi : std::min(ratio, epsilon_high_);
  return {.value = -weight * advantage * log_prob, .by_log_prob = -weight * advantage};
}

// e^l w^k e^(-l w) of the sequence's ratio w, by the sign of the advantage.
double PolicyLoss::phi(const CompletionScores& scores) const {
  double log_weight = 0;
  for (size_t t = 0; t < scores.log_probs.size(); ++t) {
    log_weight +=
        std::clamp(scores.log_probs[t] - old_of(scores, t), -kMostLogRatio, kMostLogRatio);
  }
  log_weight = std::clamp(log_weight, kLeastLogWeight, kMostLogRatio);
  const bool is_positive = scores.advantage >= 0;
  const double k = is_positive ? config_.vespo_k_pos : config_.vespo_k_neg;
  const double lambda = is_positive ? config_.vespo_lambda_pos : config_.vespo_lambda_neg;
  return std::exp(lambda + k * log_weight - lambda * std::exp(log_weight));
}

bool PolicyLoss::is_off_policy(const CompletionScores& scores) const {
  return config_.off_policy_mask_threshold && scores.advantage < 0 &&
         -mean_log_ratio(scores) > *config_.off_policy_mask_threshold;
}

void PolicyLoss::count_clipped(double ratio, double advantage, CompletionPolicyLoss& result) const {
  result.ratios += 1;
  if (kind_ == Kind::kCispo) {
    result.clipped_high += ratio > epsilon_high_ && advantage > 0 ? 1 : 0;
    return;
  }
  const double bounded = config_.delta ? std::min(ratio, *config_.delta) : ratio;
  result.clipped_low += bounded < 1 - config_.epsilon && advantage < 0 ? 1 : 0;
  result.clipped_high += bounded > 1 + epsilon_high_ && advantage > 0 ? 1 : 0;
}

CompletionPolicyLoss PolicyLoss::operator()(const CompletionScores& scores) const {
  const size_t count = scores.log_probs.size();
  CompletionPolicyLoss result;
  result.gradient.assign(count, 0);
  const double sequence_ratio = sequence_level_ ? std::exp(mean_log_ratio(scores)) : 1;
  if (sequence_level_) {
    count_clipped(sequence_ratio, scores.advantage, result);
  }
  if (kind_ == Kind::kVespo) {
    result.phi = phi(scores);
  }
  const bool is_dropped = is_off_policy(scores);
  double by_sequence_ratio = 0;
  for (size_t t = 0; t < count; ++t) {
    const double log_prob = scores.log_probs[t];
    const double ratio = sequence_level_ ? sequence_ratio : std::exp(log_prob - old_of(scores, t));
    if (!sequence_level_) {
      count_clipped(ratio, scores.advantage, result);
    }
    double by_ratio = 0;
    if (!is_dropped && (scores.kept.empty() || scores.kept[t] != 0)) {
      const Term own = term(ratio, scores.advantage, result.phi, log_prob);
      result.loss += own.value;
      by_ratio += own.by_ratio;
      result.gradient[t] += own.by_log_prob;
    }
    if (beta_ > 0) {
      const double distance = scores.reference[t] - log_prob;
      const double divergence = std::expm1(distance) - distance;
      const double weight = config_.use_bias_correction_kl ? ratio : 1;
      result.kl += divergence * weight;
      result.loss += beta_ * divergence * weight;
      result.gradient[t] -= beta_ * weight * std::expm1(distance);
      by_ratio += config_.use_bias_correction_kl ? beta_ * divergence : 0;
    }
    if (sequence_level_) {
      by_sequence_ratio += by_ratio;
    } else {
      result.gradient[t] += by_ratio * ratio;
    }
  }
  if (sequence_level_ && count > 0) {
    const double each = by_sequence_ratio * sequence_ratio / static_cast<double>(count);
    for (double& value : result.gradient) {
      value += each;
    }
  }
  return result;
}

}  // namespace tapestry::post_training

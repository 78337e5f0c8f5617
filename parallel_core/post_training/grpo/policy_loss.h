// What a policy loses by one completion: GRPO and its kin.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"

namespace tapestry::post_training {

/// A completion of T tokens that count, T >= 0 (a masked one has none). Lists have T values, but
/// for those that may be empty.
struct CompletionScores {
  double advantage = 0;
  std::span<const double> log_probs;  ///< of the policy
  std::span<const double> old;        ///< when it was sampled; empty: `log_probs`
  std::span<const double> reference;  ///< where beta is above 0
  std::span<const uint8_t> kept;      ///< tokens whose policy term counts; empty: all
};

/// Sums over the completion's tokens, not yet normalised.
struct CompletionPolicyLoss {
  double loss = 0;               ///< policy terms + beta * divergences
  std::vector<double> gradient;  ///< [T], of `loss` by the policy's log-probabilities
  double kl = 0;                 ///< of the divergences
  /// Shares of clipped ratios: of T tokens, or with sequence-level ratios of one ratio.
  double ratios = 0;
  double clipped_low = 0;   ///< below 1 - epsilon, with an advantage below 0
  double clipped_high = 0;  ///< above 1 + epsilon_high (cispo: epsilon_high), with one above 0
  double phi = 0;           ///< vespo's weight
};

/// As TRL 1.16 computes them (GRPOTrainer._compute_loss), in double precision. With the ratio
/// r = exp(log_probs - old), of sequences exp(mean of the difference), and the advantage A a token
/// loses
///
///   grpo, bnpo, dr_grpo, dapo, luspo  -min(min(r, delta) A, clip(r, 1 - epsilon, 1 + epsilon_high)
///   A) cispo                             -min(r, epsilon_high) A log_probs, r without gradient
///   sapo                              -A sigmoid(t (r - 1)) 4 / t, t by the sign of A
///   vespo                             -phi A log_probs, phi without gradient
///
/// and with a reference beta (exp(d) - d - 1), d = reference - log_probs, times r with
/// use_bias_correction_kl. off_policy_mask_threshold drops the policy terms of a completion with
/// A < 0 whose mean of old - log_probs exceeds it.
class PolicyLoss {
 public:
  /// Of a resolved configuration.
  explicit PolicyLoss(const PostTrainingConfig& config);

  /// Whether ratios are clipped on both sides, and clip_ratio/* can be told.
  bool clips() const { return kind_ == Kind::kClip; }
  bool is_sequence_level() const { return sequence_level_; }
  double beta() const { return beta_; }

  CompletionPolicyLoss operator()(const CompletionScores& scores) const;

 private:
  enum class Kind : uint8_t { kClip, kCispo, kSapo, kVespo };
  /// A term and its derivatives by the ratio and by the log-probability itself.
  struct Term {
    double value = 0;
    double by_ratio = 0;
    double by_log_prob = 0;
  };

  Term clipped(double ratio, double advantage) const;
  Term soft(double ratio, double advantage) const;
  Term term(double ratio, double advantage, double phi, double log_prob) const;
  double phi(const CompletionScores& scores) const;
  bool is_off_policy(const CompletionScores& scores) const;
  void count_clipped(double ratio, double advantage, CompletionPolicyLoss& result) const;

  Kind kind_ = Kind::kClip;
  bool sequence_level_ = false;
  PostTrainingConfig config_;
  double beta_ = 0;
  double epsilon_high_ = 0;
};

}  // namespace tapestry::post_training

// Numbers of a step over all ranks, and what tasks measure of chosen and rejected completions.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "parallel_core/data/data_source.h"
#include "parallel_core/training/step/step_objective.h"

namespace tapestry::post_training {

/// Replaces each value by its sum over the ranks that have other sequences; as they are in one
/// process. Collective.
void sum_over_step(std::span<double> values);

/// The values of all ranks that have other sequences, in the order of the ranks, on each of them.
/// Collective.
struct GatheredValues {
  std::vector<double> values;
  int64_t first = 0;  ///< where this rank's own begin
};
GatheredValues gather_over_step(std::span<const double> own);

/// What is added up over the completions of a step, of which `chosen` and `rejected` are two kinds.
class PreferenceSums {
 public:
  enum Kind : uint8_t { kChosen, kRejected };

  void start_step() { sums_ = {}; }
  void add_completion(Kind kind, double log_prob, double reward) {
    at(kind, kCount) += 1;
    at(kind, kLogProb) += log_prob;
    at(kind, kReward) += reward;
  }
  /// Mean logits of so many positions together.
  void add_logits(Kind kind, double sum, int64_t positions) {
    at(kind, kLogits) += sum;
    at(kind, kPositions) += static_cast<double>(positions);
  }
  void add_right_order(bool is_right) { sums_[kRightOrder] += is_right ? 1 : 0; }
  void add_entropy(double sum, int64_t tokens) {
    sums_[kEntropy] += sum;
    sums_[kEntropyTokens] += static_cast<double>(tokens);
  }
  void add_likeliest(double sum, int64_t tokens) {
    sums_[kLikeliest] += sum;
    sums_[kLikeliestTokens] += static_cast<double>(tokens);
  }

  /// Adds up what all ranks have; what follows is then the same on each. Collective over the job.
  void finish_step();
  double count(Kind kind) const { return at(kind, kCount); }
  double mean_log_prob(Kind kind) const { return at(kind, kLogProb) / at(kind, kCount); }
  double mean_reward(Kind kind) const { return at(kind, kReward) / at(kind, kCount); }
  double mean_logits(Kind kind) const { return at(kind, kLogits) / at(kind, kPositions); }
  double mean_entropy() const { return sums_[kEntropy] / sums_[kEntropyTokens]; }
  /// Share of tokens that were the likeliest ones; 0 of none.
  double accuracy() const;
  /// Share of the pairs in the right order.
  double right_order() const { return sums_[kRightOrder] / at(kChosen, kCount); }

  /// rewards/chosen, /rejected, /accuracies, /margins, logps/.. of pairs, by TRL's names.
  void append_pairs(NamedValues& values) const;
  /// logits/chosen, logits/rejected, those of which there are any.
  void append_logits(NamedValues& values) const;

 private:
  enum Sum : uint8_t { kCount, kLogProb, kReward, kLogits, kPositions, kSums };
  enum : uint8_t {
    kRightOrder = 2 * kSums,
    kEntropy,
    kEntropyTokens,
    kLikeliest,
    kLikeliestTokens,
    kAllSums
  };
  double& at(Kind kind, Sum sum) { return sums_[static_cast<size_t>(kind) * kSums + sum]; }
  double at(Kind kind, Sum sum) const { return sums_[static_cast<size_t>(kind) * kSums + sum]; }

  std::array<double, kAllSums> sums_ = {};
};

/// Tokens of prompts and completions that a run has trained on, as TRL's num_tokens counts them.
class TrainedTokens {
 public:
  /// Counts those of the micro-batches, once for each step however often it is computed; of an
  /// evaluation none. Collective.
  void add_step(int64_t step, const std::vector<data::Batch>& micro_batches, bool training);
  double total() const { return before_ + of_step_; }

 private:
  int64_t step_ = 0;
  double before_ = 0;
  double of_step_ = 0;
};

}  // namespace tapestry::post_training

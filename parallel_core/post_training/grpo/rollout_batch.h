// Completions that are made, or read, at once and trained on for some steps.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "parallel_core/post_training/rows/sequence_set.h"
#include "parallel_core/training/step/step_objective.h"

namespace tapestry::post_training {

/// A reward that a function does not give.
inline constexpr double kNoReward = std::numeric_limits<double>::quiet_NaN();

/// A number for each token of some completions, one completion after the other.
class CompletionValues {
 public:
  void add(std::span<const double> values) {
    values_.insert(values_.end(), values.begin(), values.end());
    ends_.push_back(static_cast<int64_t>(values_.size()));
  }
  /// Of a completion, as many as it has tokens.
  std::span<const double> of(int64_t completion) const {
    const auto i = static_cast<size_t>(completion);
    const int64_t begin = i > 0 ? ends_[i - 1] : 0;
    return std::span(values_).subspan(static_cast<size_t>(begin),
                                      static_cast<size_t>(ends_[i] - begin));
  }
  /// Completions.
  int64_t size() const { return static_cast<int64_t>(ends_.size()); }
  /// No completion has any: they were not asked for, or are not known.
  bool empty() const { return ends_.empty(); }

 private:
  std::vector<double> values_;
  std::vector<int64_t> ends_;
};

/// Whole groups: completions g * num_generations and so on answer prompt g. All lists go by
/// completion and are as long as there are completions. The same on every rank.
struct RolloutBatch {
  int64_t num_generations = 1;
  SequenceSet completions{1};  ///< neither prompts nor completions are empty
  /// Whether a completion was cut off: its last token is neither an end nor padding.
  std::vector<bool> truncated;

  std::vector<std::string> reward_names;     ///< of the functions, as metrics show them
  std::vector<std::vector<double>> rewards;  ///< by function, then by completion; or kNoReward

  /// ln p of each completion token, logits divided by the temperature, under the weights that the
  /// completions were made with. Empty: those of the first pass over the batch.
  CompletionValues old_log_probs;
  /// The same under the reference; empty without one (beta 0).
  CompletionValues ref_log_probs;

  // What set_advantages() (advantages.h) makes of the rewards.
  std::vector<double> advantages;
  /// reward, reward_std, frac_reward_zero_std, rewards/NAME/{mean,std},
  /// completions/{mean,min,max}_length, completions/clipped_ratio, ..: shown with each step that
  /// trains on the batch. Whoever makes a batch may add its own.
  NamedValues metrics;
};

}  // namespace tapestry::post_training

// Log-probabilities of the completions of a set of sequences, token by token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel_core/post_training/rows/sequence_set.h"

namespace tapestry::post_training {

/// Tokens of a sequence's completion that a model gives a probability: all, but for a completion
/// without a prompt the first one, before which there is nothing.
int64_t scored_tokens(const SequenceSet& set, int64_t sequence);

/// ln p of each scored token, float32, as TokenScores tells them. Zero until it is written.
class LogProbTable {
 public:
  LogProbTable() = default;
  explicit LogProbTable(const SequenceSet& set);

  int64_t size() const { return static_cast<int64_t>(ends_.size()); }
  std::span<const float> tokens(int64_t sequence) const;
  std::span<float> tokens(int64_t sequence);
  /// Of a sequence's scored tokens [begin, end), added in double; all of them without.
  double sum(int64_t sequence) const;
  double sum(int64_t sequence, int64_t begin, int64_t end) const;
  /// Of all sequences, one behind the other.
  std::span<const float> values() const { return values_; }
  std::span<float> values() { return values_; }

 private:
  std::vector<int64_t> ends_;
  std::vector<float> values_;
};

}  // namespace tapestry::post_training

// What the samples of language-model pre-training look like, wherever they come from.
#pragma once

#include <cstdint>
#include <vector>

namespace tapestry::data {

/// One sample of L tokens. labels[t] is what should follow tokens[t]; loss_mask is 1 where the
/// prediction counts, else 0.
struct Sample {
  std::vector<int64_t> tokens;
  std::vector<int64_t> labels;
  std::vector<float> loss_mask;
  /// Empty means 0 .. L-1.
  std::vector<int64_t> position_ids;
  /// First positions of the documents that may not see each other, beginning with 0. Empty means
  /// that every token sees all tokens before it.
  std::vector<int64_t> document_starts;
};

/// Numbered samples in training order. Reading is thread-safe.
class TokenDataset {
 public:
  virtual ~TokenDataset() = default;
  /// Samples that exist; training may use fewer.
  virtual int64_t size() const = 0;
  /// L, the tokens of each sample.
  virtual int64_t seq_length() const = 0;
  /// Tokens of the underlying text read once.
  virtual int64_t tokens_per_epoch() const = 0;
  /// Sample k. IndexError outside [0, size()).
  virtual Sample get(int64_t k) const = 0;
};

}  // namespace tapestry::data

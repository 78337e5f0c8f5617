// Where in a micro-batch's scores the tokens of its completions are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/tensor/tensor.h"
#include "parallel_core/data/data_source.h"

namespace tapestry::post_training {

/// A completion of a micro-batch. Positions are those of [B, S] row-major, in which position t
/// speaks of the token behind it.
struct ScoredCompletion {
  int64_t number = 0;  ///< data::RowSequence::number
  int64_t tokens = 0;  ///< of prompt and completion
  int64_t begin = 0;   ///< first position that speaks of the completion
  int64_t end = 0;
  int64_t first = 0;  ///< the first one of its sequence
  int64_t last = 0;   ///< end of its part of the row: where the next sequence or the row ends

  /// Tokens that have a probability: of a completion without a prompt all but the first.
  int64_t count() const { return end - begin; }
};

/// All completions, in the order of rows and places.
std::vector<ScoredCompletion> scored_completions(const data::Batch& batch);

struct ScoredPair {
  ScoredCompletion chosen;
  ScoredCompletion rejected;
};

/// The completions two by two: sequence 2u is chosen, 2u + 1 rejected. RuntimeError if one lacks
/// the other.
std::vector<ScoredPair> scored_pairs(const data::Batch& batch);

/// The sum of values[begin, end), in double.
double sum_of(std::span<const float> values, int64_t begin, int64_t end);

/// The elements of scores, [B, S] row-major, without gradients.
class ScoreValues {
 public:
  ScoreValues() = default;
  explicit ScoreValues(const Tensor& scores);
  std::span<const float> span() const {
    return {held_.data<float>(), static_cast<size_t>(held_.numel())};
  }
  /// The sum of [begin, end), in double.
  double sum(int64_t begin, int64_t end) const { return sum_of(span(), begin, end); }
  /// Over the tokens of a completion.
  double sum(const ScoredCompletion& completion) const {
    return sum(completion.begin, completion.end);
  }

 private:
  Tensor held_;
};

}  // namespace tapestry::post_training

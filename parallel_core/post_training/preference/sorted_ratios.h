// Log ratios of a step's pairs in order, for losses that compare distributions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel_core/post_training/losses/preference_losses.h"

namespace tapestry::post_training {

/// The lists that `aot` and `aot_unpaired` compare element by element, over all pairs of a step,
/// and where this rank's pairs stand in them. Source: Melnyk et al. 2024, arXiv:2406.05882.
class SortedRatios {
 public:
  SortedRatios() = default;
  /// From this rank's pairs. Collective over the ranks that have other sequences.
  explicit SortedRatios(std::span<const PairLogProbs> own);

  /// The loss of the rank's pair number `i`, which has those log-probabilities now, as a part of
  /// the sum over the lists' elements: of `aot_unpaired` with the value of the element of its
  /// chosen completion and the derivatives by both.
  PairLoss loss(bool unpaired,
                const PostTrainingConfig& config,
                int64_t i,
                const PairLogProbs& pair) const;

 private:
  /// Values of all pairs in ascending order, and the places of the rank's own there.
  struct SortedList {
    std::vector<double> values;
    std::vector<int64_t> places;
  };
  static SortedList sorted(std::span<const double> own);
  static double opposite(const SortedList& mine, const SortedList& other, int64_t i);

  SortedList policy_;     // chosen - rejected
  SortedList reference_;  // the same of the reference
  SortedList chosen_;     // policy - reference
  SortedList rejected_;
};

}  // namespace tapestry::post_training

// Prompts with the completions of other examples, of which KTO takes its reference point.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "parallel_core/post_training/rows/sequence_set.h"

namespace tapestry::post_training {

/// Units whose completions are exchanged within groups.
struct ExchangedUnits {
  int64_t first = 0;  ///< of the set
  int64_t count = 0;
  /// The unit, from 0 to count - 1, that is drawn at a place; the same in each epoch.
  std::function<int64_t(int64_t place)> order;
};

/// Of the units of each part, drawn in groups of so many, the last of which may have fewer: the
/// prompt of each with the completion of the one before it in the group, of the first with the last
/// one's; cut at the end to max_tokens. Numbers are those of `set`, whose sequences are whole.
/// Pairs of units that no part has are empty. Source: TRL's KTOTrainer, which exchanges within the
/// batch of one device.
SequenceSet mismatched_pairs(const SequenceSet& set,
                             const std::vector<ExchangedUnits>& parts,
                             int64_t group,
                             int64_t max_tokens);

}  // namespace tapestry::post_training

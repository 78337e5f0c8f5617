// What the passes of a mixture of experts are counted as.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel_core/transformer/moe/router.h"

namespace tapestry {

/// Sums over routing groups. Empty before the first of them.
struct MoECounts {
  std::vector<int64_t> tokens_per_expert;   ///< [E], before anything is dropped
  std::vector<int64_t> dropped_per_expert;  ///< [E]
  std::vector<int64_t> balance_counts;      ///< [E], see Routing
  /// tokens_per_expert of each pass by itself, if `keeps_passes`.
  std::vector<std::vector<int64_t>> of_passes;
  bool keeps_passes = false;
  double aux_loss = 0;  ///< this rank's parts; in exact mode sums over sequences
  int64_t passes = 0;
  int64_t sequences = 0;  ///< of the passes in exact mode, else 0
  double smallest_router_gap = 1e9;
  double smallest_group_gap = 1e9;
  double smallest_capacity_gap = 1e9;

  void add(const Routing& routing);
  /// What aux_loss is divided by for a mean over passes.
  double sequences_of_pass() const;
};

}  // namespace tapestry

// What the ranks of a routing group must agree on.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel_core/comm/process_group.h"

namespace tapestry {

struct GroupSums {
  std::vector<int64_t> tokens_of_ranks;  ///< in the order of the group's ranks
  std::vector<int64_t> sums;
  std::vector<double> minima;
};

/// Sums of `counts`, exact, and the smallest of each of `distances`, over the group's ranks; and
/// how many tokens each has. A collective, in which all ranks give as many counts and distances;
/// the same on all of them. Null: a group of this rank alone.
GroupSums sum_over_group(ProcessGroup* group,
                         int64_t tokens,
                         const std::vector<int64_t>& counts,
                         const std::vector<double>& distances);

}  // namespace tapestry

// What collectives take between ranks of one machine, as measured.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "parallel_core/comm/process_group.h"

namespace tapestry::planning {

enum class Collective : uint8_t { kAllReduce, kAllGather, kReduceScatter, kMessage };
inline constexpr size_t kCollectives = 4;

/// Of groups of one size, all at once, while each rank also computes: beyond what that takes alone.
/// Where ranks share cores, that is more than messages take: a rank goes on when it gets a core.
struct CollectiveTimes {
  std::vector<double> bytes;  ///< of the whole tensor, ascending
  std::array<std::vector<double>, kCollectives> seconds;

  /// Between measured sizes by their logarithms; beyond them in proportion to the bytes, below the
  /// smallest as that.
  double of(Collective collective, double size) const;
  bool operator==(const CollectiveTimes&) const = default;
};

/// Measures for some seconds, the least of several rounds. Every rank of the world calls it, which
/// is divided into groups of `size` ranks, a divisor of its size from 2 on. The same answer on
/// every rank.
CollectiveTimes measure_collectives(ProcessGroup& world, int size);

}  // namespace tapestry::planning

// What messages between the ranks of a plan cost.
#pragma once

#include <cstdint>
#include <map>

#include "parallel_core/comm/collective_cost.h"
#include "parallel_core/planning/costs/collective_times.h"

namespace tapestry::planning {

/// A network that nobody has measured: 10 Gbit/s, 20 us.
inline MessageCost assumed_network() {
  return {.latency = 20e-6, .overhead = 2e-6, .per_byte = 8e-10, .add_per_byte = 1e-10};
}

/// Between ranks of one machine, and of several.
struct MessageCosts {
  MessageCost host = shared_memory_cost();
  MessageCost network = assumed_network();
  /// On one machine with so many ranks, by the size of the group: goes before `host`.
  std::map<int64_t, CollectiveTimes> on_host = {};

  /// Of a tensor of so many bytes in a group of ranks, which lie on one host or on several.
  double seconds(Collective collective, int64_t ranks, double bytes, bool leaves_host) const;
};

}  // namespace tapestry::planning

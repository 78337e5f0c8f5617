// What messages between the ranks of a plan cost.
#pragma once

#include "parallel_core/comm/collective_cost.h"

namespace tapestry::planning {

/// A network that nobody has measured: 10 Gbit/s, 20 us.
inline MessageCost assumed_network() {
  return {.latency = 20e-6, .overhead = 2e-6, .per_byte = 8e-10, .add_per_byte = 1e-10};
}

/// Between ranks of one machine, and of several.
struct MessageCosts {
  MessageCost host = shared_memory_cost();
  MessageCost network = assumed_network();
};

}  // namespace tapestry::planning

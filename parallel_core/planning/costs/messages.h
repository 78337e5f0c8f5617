// What messages between ranks cost.
#pragma once

#include <cstdint>

namespace tapestry::planning {

/// Seconds of a message: of its way, and per byte, one direction.
struct MessageCost {
  double latency = 5e-6;
  double per_byte = 1e-10;
};

/// Between ranks of one machine, and of several.
struct MessageCosts {
  MessageCost host;
  MessageCost network{.latency = 20e-6, .per_byte = 8e-10};
  bool network_is_measured = false;
};

/// Collectives of so many ranks over tensors of so many bytes in all, as schedule.h has them.
double all_gather_seconds(const MessageCost& cost, int64_t ranks, double bytes);
double reduce_scatter_seconds(const MessageCost& cost, int64_t ranks, double bytes);
double all_reduce_seconds(const MessageCost& cost, int64_t ranks, double bytes);

}  // namespace tapestry::planning

#include "parallel_core/planning/costs/messages.h"

namespace tapestry::planning {

double all_gather_seconds(const MessageCost& cost, int64_t ranks, double bytes) {
  const auto n = static_cast<double>(ranks);
  return ranks < 2 ? 0 : cost.latency + (n - 1) / n * bytes * cost.per_byte;
}

double reduce_scatter_seconds(const MessageCost& cost, int64_t ranks, double bytes) {
  return all_gather_seconds(cost, ranks, bytes);
}

double all_reduce_seconds(const MessageCost& cost, int64_t ranks, double bytes) {
  return reduce_scatter_seconds(cost, ranks, bytes) + all_gather_seconds(cost, ranks, bytes);
}

}  // namespace tapestry::planning

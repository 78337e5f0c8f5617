#include "parallel_core/planning/costs/messages.h"

#include <cmath>

namespace tapestry::planning {

double MessageCosts::seconds(Collective collective,
                             int64_t ranks,
                             double bytes,
                             bool leaves_host) const {
  if (ranks < 2) {
    return 0;
  }
  const auto measured = on_host.find(ranks);
  if (!leaves_host && measured != on_host.end()) {
    return measured->second.of(collective, bytes);
  }
  const MessageCost& cost = leaves_host ? network : host;
  const auto size = static_cast<int64_t>(std::llround(bytes));
  const auto count = static_cast<int>(ranks);
  switch (collective) {
    case Collective::kAllReduce:
      return all_reduce_seconds(cost, count, size);
    case Collective::kAllGather:
      return all_gather_seconds(cost, count, size);
    case Collective::kReduceScatter:
      return reduce_scatter_seconds(cost, count, size);
    case Collective::kMessage:
      break;
  }
  return message_seconds(cost, size);
}

}  // namespace tapestry::planning

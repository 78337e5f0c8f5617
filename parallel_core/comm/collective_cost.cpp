#include "parallel_core/comm/collective_cost.h"

#include <algorithm>
#include <bit>

#include "parallel_core/comm/schedule.h"
#include "parallel_core/comm/transport.h"

namespace tapestry {

namespace {

double real(int64_t value) { return static_cast<double>(value); }

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// From the root of a binomial tree to its farthest rank, and the root's children.
int depth(int ranks) { return std::bit_width(static_cast<unsigned>(ranks)) - 1; }
int children(int ranks) { return std::bit_width(static_cast<unsigned>(ranks - 1)); }

double ways(int64_t bytes) { return bytes > Envelope::kInlineBytes ? 3 : 1; }

// What a message takes beside its bytes.
double begin(const MessageCost& cost, int64_t bytes) {
  return 2 * cost.overhead + ways(bytes) * cost.latency;
}

// `messages` of as many bytes that a rank sends, while it receives as many: its link or its
// processor is busy until the last one.
double stream(const MessageCost& cost, double messages, double bytes) {
  const double one = bytes * cost.per_byte;
  const double sending = std::max(messages * one, (messages - 1) * cost.overhead + one);
  return std::max(begin(cost, static_cast<int64_t>(bytes)) + sending,
                  2 * messages * cost.overhead + one);
}

// Every rank sends as many bytes to each other one.
double exchange(const MessageCost& cost, int ranks, int64_t bytes) {
  constexpr int kAtOnce = kMostDirect - 1;
  const double all = stream(cost, ranks - 1, real(bytes));
  if (ways(bytes) == 1) {
    return all;
  }
  // The next one begins when the last byte of the first has left.
  const double one = message_seconds(cost, bytes);
  const int64_t more_rounds = (ranks - 2) / kAtOnce;  // whole ones
  return std::max(all, one + static_cast<double>(more_rounds) * (one - cost.latency));
}

double direct_reduce(const MessageCost& cost, const DirectLayout& layout, int64_t element) {
  const int64_t segments = std::max<int64_t>(1, layout.segments(0));
  const double bytes = real(layout.piece * element) / real(segments);
  const double messages = real(segments) * (layout.ranks - 1);
  // All but the last segment's contributions are added while others are on their way.
  return stream(cost, messages, bytes) + layout.ranks * bytes * cost.add_per_byte;
}

// The first segment's way through a chain, one direction.
double chain_way(const MessageCost& cost, int ranks, int64_t segment) {
  return (ranks - 1) * (message_seconds(cost, segment) + 2 * real(segment) * cost.add_per_byte);
}

// The segments that follow it. A rank's link, its processor and the window of segments that are
// under way bound how fast: `streams` go through it, sums and in an all-reduce results.
double chain_rest(const MessageCost& cost, int64_t segments, int64_t bytes, int streams) {
  const int64_t segment = bytes / segments;  // the last one of a piece is shorter
  const double link = real(segment) * cost.per_byte;
  const double adding = 2 * real(segment) * cost.add_per_byte;
  const double processor = 2 * streams * cost.overhead + adding;
  // Asked for, received, added to, announced, asked for, sent: then its place is free again.
  const double slot = 2 * (link + (ways(segment) - 1) * cost.latency + cost.overhead) + adding;
  const int64_t rest = segments - 1;
  return std::max(real(rest) * std::max(streams * link, processor),
                  real(rest / kWindow) * slot + real(rest % kWindow) * link);
}

// What a subtree has goes up, twice as much at each level; `down` bytes come back.
double tree(const MessageCost& cost, int ranks, int64_t up, int64_t down) {
  double seconds = broadcast_seconds(cost, ranks, down);
  for (int level = 0; level < depth(ranks); ++level) {
    seconds += message_seconds(cost, up << static_cast<unsigned>(level));
  }
  return seconds + (ranks - (1 << depth(ranks))) * real(up) * cost.per_byte;
}

}  // namespace

MessageCost shared_memory_cost() {
  return {.latency = 0, .overhead = 0.8e-6, .per_byte = 1 / 13e9, .add_per_byte = 1 / 45e9};
}

double message_seconds(const MessageCost& cost, int64_t bytes) {
  return begin(cost, bytes) + real(bytes) * cost.per_byte;
}

double all_reduce_seconds(const MessageCost& cost,
                          int ranks,
                          int64_t bytes,
                          int64_t element_bytes) {
  if (ranks == 1) {
    return 0;
  }
  const int64_t elements = ceil_divide(bytes, element_bytes);
  if (ranks <= kMostDirect) {
    if (bytes <= kSmallDirectAllReduce) {
      return exchange(cost, ranks, bytes) + ranks * real(bytes) * cost.add_per_byte;
    }
    const DirectLayout layout = DirectLayout::all_reduce(ranks, elements, element_bytes);
    const double messages = real(std::max<int64_t>(1, layout.segments(0))) * (ranks - 1);
    return direct_reduce(cost, layout, element_bytes) +
           stream(cost, messages, (ranks - 1) * real(layout.piece * element_bytes) / messages);
  }
  if (bytes <= kSmallTreeAllReduce) {
    return tree(cost, ranks, bytes, bytes) + ranks * real(bytes) * cost.add_per_byte;
  }
  const ChainLayout layout = ChainLayout::all_reduce(ranks, elements, element_bytes);
  const int64_t segment = layout.count(0) * element_bytes;
  return 2 * chain_way(cost, ranks, segment) + chain_rest(cost, layout.segments(), bytes, 2);
}

double reduce_scatter_seconds(const MessageCost& cost,
                              int ranks,
                              int64_t bytes,
                              int64_t element_bytes) {
  if (ranks == 1) {
    return 0;
  }
  const int64_t elements = ceil_divide(bytes, element_bytes);
  if (ranks <= kMostDirect) {
    return direct_reduce(cost, DirectLayout::reduce_scatter(ranks, elements, element_bytes),
                         element_bytes);
  }
  const ChainLayout layout = ChainLayout::reduce_scatter(ranks, elements, element_bytes);
  if (layout.segments() == 0) {
    return 0;
  }
  const int64_t segment = layout.count(0) * element_bytes;
  const int64_t share = layout.count_of_share(0) * element_bytes;
  // The last rank sends a segment's shares one after the other, those of kWindow segments at once.
  const double one = message_seconds(cost, share);
  const double scattering = real(std::min(layout.shares_per_segment, layout.shares()) - 1) *
                            (ways(share) > 1 ? one - cost.latency : cost.overhead);
  return chain_way(cost, ranks, segment) +
         std::max(chain_rest(cost, layout.segments(), bytes, 1),
                  real(layout.segments() - 1) * (scattering + one) / kWindow) +
         scattering + one;
}

double all_gather_seconds(const MessageCost& cost, int ranks, int64_t bytes) {
  if (ranks == 1) {
    return 0;
  }
  const int64_t piece = ceil_divide(bytes, ranks);
  if (ranks <= kMostDirect) {
    return exchange(cost, ranks, piece);
  }
  if (piece <= kSmallTreeAllGather) {
    return tree(cost, ranks, piece, bytes);
  }
  return (ranks - 1) * message_seconds(cost, piece);
}

double all_to_all_seconds(const MessageCost& cost, int ranks, int64_t bytes) {
  return ranks == 1 ? 0 : exchange(cost, ranks, ceil_divide(bytes, ranks));
}

double broadcast_seconds(const MessageCost& cost, int ranks, int64_t bytes) {
  return ranks == 1 ? 0
                    : depth(ranks) * message_seconds(cost, bytes) +
                          (children(ranks) - depth(ranks)) *
                              std::max(real(bytes) * cost.per_byte, cost.overhead);
}

double barrier_seconds(const MessageCost& cost, int ranks) {
  return ranks == 1 ? 0 : children(ranks) * message_seconds(cost, 0);
}

}  // namespace tapestry

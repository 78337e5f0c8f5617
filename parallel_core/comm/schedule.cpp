#include "parallel_core/comm/schedule.h"

#include <algorithm>

namespace tapestry {

namespace {

constexpr int64_t kAlignment = 64;  // elements: whole cache lines

int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t aligned(int64_t elements) { return divided_up(elements, kAlignment) * kAlignment; }

// Calls body(rank) for the others, each rank starting with the one after itself, so that not all
// send to the same one first.
template <class Body>
void for_others(int ranks, int rank, const Body& body) {
  for (int i = 1; i < ranks; ++i) {
    body((rank + i) % ranks);
  }
}

// Small messages are through before send() returns: thousands of them are a loop, not a recursion.
class Sending {
 public:
  /// Runs send(); whether the message was through at once.
  template <class Send>
  bool at_once(const Send& send) {
    is_active_ = true;
    is_through_ = false;
    send();
    is_active_ = false;
    return is_through_;
  }
  /// A message is through: true if at_once() will say so.
  bool notice() {
    is_through_ = is_active_;
    return is_active_;
  }

 private:
  bool is_active_ = false;
  bool is_through_ = false;
};

class DirectReduce final : public Schedule {
 public:
  DirectReduce(const DirectLayout& layout, int rank, bool all_reduce)
      : layout_(layout),
        rank_(rank),
        all_reduce_(all_reduce),
        to_(static_cast<size_t>(layout.ranks)),
        own_(static_cast<size_t>(layout.segments(rank))) {
    for (Own& segment : own_) {
      segment.missing = layout.ranks - 1;
    }
  }

  void start(ScheduleActions& actions) override {
    expect(actions);
    for_others(layout_.ranks, rank_, [&](int other) { contribute(actions, other); });
  }

  void sent(ScheduleActions& actions, int part, int to) override {
    const int64_t segment = part / 2;
    if (!DirectLayout::is_contribution(part)) {
      end_one(actions, segment);
      return;
    }
    if (all_reduce_) {
      // The result goes where the contribution was, which may be overwritten only now.
      actions.receive(to, DirectLayout::result(segment));
    }
    --to_[static_cast<size_t>(to)].under_way;
    contribute(actions, to);
  }

  void received(ScheduleActions& actions, int part, int /*from*/) override {
    const int64_t segment = part / 2;
    Own& own = own_[static_cast<size_t>(segment)];
    if (!DirectLayout::is_contribution(part) || --own.missing > 0) {
      return;
    }
    actions.reduce(segment);
    if (all_reduce_) {
      own.missing = layout_.ranks - 1;
      for_others(layout_.ranks, rank_,
                 [&](int other) { actions.send(other, DirectLayout::result(segment)); });
    } else {
      own.missing = 1;
      end_one(actions, segment);
    }
  }

 private:
  struct Peer {
    int64_t next = 0;
    int under_way = 0;
  };
  struct Own {
    int missing = 0;  // contributions, then results that are not through
    bool ended = false;
  };

  void contribute(ScheduleActions& actions, int other) {
    Peer& peer = to_[static_cast<size_t>(other)];
    while (peer.under_way < kWindow && peer.next < layout_.segments(other)) {
      ++peer.under_way;
      actions.send(other, DirectLayout::contribution(peer.next++));
    }
  }
  // A segment's slot is that of the one kWindow before it.
  void expect(ScheduleActions& actions) {
    while (expected_ < own_.size() && (expected_ < kWindow || own_[expected_ - kWindow].ended)) {
      const int part = DirectLayout::contribution(static_cast<int64_t>(expected_++));
      for_others(layout_.ranks, rank_, [&](int other) { actions.receive(other, part); });
    }
  }
  void end_one(ScheduleActions& actions, int64_t segment) {
    Own& own = own_[static_cast<size_t>(segment)];
    if (--own.missing == 0) {
      own.ended = true;
      expect(actions);
    }
  }

  DirectLayout layout_;
  int rank_;
  bool all_reduce_;
  std::vector<Peer> to_;
  std::vector<Own> own_;  // segments of the own piece
  size_t expected_ = 0;
};

class ChainReduce final : public Schedule {
 public:
  ChainReduce(const ChainLayout& layout, int ranks, int rank)
      : layout_(layout),
        ranks_(ranks),
        rank_(rank),
        all_reduce_(layout.pieces == 1),
        sums_(static_cast<size_t>(layout.segments())),
        results_(sums_.ended.size()) {}

  void start(ScheduleActions& actions) override { next_sums(actions); }

  void sent(ScheduleActions& actions, int part, int /*to*/) override {
    const int64_t index = part / 2;
    if (ChainLayout::is_sum(part)) {
      end(sums_, index);
      next_sums(actions);
      // Results go where contributions were, which may be overwritten only now.
      if (all_reduce_) {
        next_results(actions);
      } else {
        receive_own(actions, index);
      }
    } else if (!is_last()) {
      end(results_, index);
      next_results(actions);
    } else if (all_reduce_) {
      end(sums_, index);
      next_sums(actions);
    } else if (!sending_.notice()) {
      scatter(actions, index / layout_.shares_per_segment, index + 1);
    }
  }

  void received(ScheduleActions& actions, int part, int /*from*/) override {
    const int64_t index = part / 2;
    if (!ChainLayout::is_sum(part)) {
      if (all_reduce_ && rank_ > 0) {
        actions.send(rank_ - 1, part);
      }
      return;
    }
    actions.reduce(index);
    if (!is_last()) {
      actions.send(rank_ + 1, part);
    } else if (all_reduce_) {
      actions.send(rank_ - 1, ChainLayout::result(index));
    } else {
      scatter(actions, index, index * layout_.shares_per_segment);
    }
  }

 private:
  // Segments of which kWindow at a time are on their way through this rank.
  struct Row {
    explicit Row(size_t size) : ended(size, 0) {}
    std::vector<uint8_t> ended;
    size_t next = 0;
    bool has_room() const {
      return next < ended.size() && (next < kWindow || ended[next - kWindow] != 0);
    }
  };
  static void end(Row& row, int64_t segment) { row.ended[static_cast<size_t>(segment)] = 1; }

  bool is_last() const { return rank_ == ranks_ - 1; }

  void next_sums(ScheduleActions& actions) {
    while (sums_.has_room()) {
      const int part = ChainLayout::sum(static_cast<int64_t>(sums_.next++));
      if (rank_ == 0) {
        actions.send(1, part);
      } else {
        actions.receive(rank_ - 1, part);
      }
    }
  }
  // Of an all-reduce, on all ranks but the last. Nobody waits for what rank 0 does with its own.
  void next_results(ScheduleActions& actions) {
    while (results_.next < sums_.ended.size() && sums_.ended[results_.next] != 0 &&
           (rank_ == 0 || results_.has_room())) {
      actions.receive(rank_ + 1, ChainLayout::result(static_cast<int64_t>(results_.next++)));
    }
  }
  // Of a reduce-scatter.
  void receive_own(ScheduleActions& actions, int64_t segment) {
    for_shares(segment, segment * layout_.shares_per_segment, [&](int64_t share) {
      if (layout_.owner(share) == rank_) {
        actions.receive(ranks_ - 1, ChainLayout::result(share));
      }
      return true;
    });
  }
  // The last rank sends a segment's shares one after the other, from `share` on.
  void scatter(ScheduleActions& actions, int64_t segment, int64_t share) {
    const bool all = for_shares(segment, share, [&](int64_t next) {
      return layout_.owner(next) == rank_ || sending_.at_once([&] {
        actions.send(layout_.owner(next), ChainLayout::result(next));
      });
    });
    if (all) {
      end(sums_, segment);
      next_sums(actions);
    }
  }
  // While body(share) says true; whether it always has.
  template <class Body>
  bool for_shares(int64_t segment, int64_t first, const Body& body) const {
    const int64_t end = std::min(layout_.shares(), (segment + 1) * layout_.shares_per_segment);
    for (int64_t share = first; share < end; ++share) {
      if (!body(share)) {
        return false;
      }
    }
    return true;
  }

  ChainLayout layout_;
  int ranks_;
  int rank_;
  bool all_reduce_;
  Row sums_;
  Row results_;
  Sending sending_;
};

class RingGather final : public Schedule {
 public:
  RingGather(int ranks, int rank)
      : ranks_(ranks), rank_(rank), has_(static_cast<size_t>(ranks), 0) {
    has_[0] = 1;
  }

  void start(ScheduleActions& actions) override {
    for (int distance = 1; distance < ranks_; ++distance) {
      actions.receive((rank_ + ranks_ - 1) % ranks_, piece_at(distance));
    }
    pass_on(actions);
  }
  void sent(ScheduleActions& actions, int /*part*/, int /*to*/) override {
    --under_way_;
    pass_on(actions);
  }
  void received(ScheduleActions& actions, int part, int /*from*/) override {
    has_[static_cast<size_t>((rank_ + ranks_ - part) % ranks_)] = 1;
    pass_on(actions);
  }

 private:
  // The piece of the rank that is so many before this one.
  int piece_at(int distance) const { return (rank_ + ranks_ - distance) % ranks_; }

  // All but the one that the next rank began with.
  void pass_on(ScheduleActions& actions) {
    while (under_way_ < kWindow && next_ < ranks_ - 1 && has_[static_cast<size_t>(next_)] != 0) {
      ++under_way_;
      actions.send((rank_ + 1) % ranks_, piece_at(next_++));
    }
  }

  int ranks_;
  int rank_;
  std::vector<uint8_t> has_;  // by distance
  int next_ = 0;              // distance
  int under_way_ = 0;
};

class TreeGatherAndBroadcast final : public Schedule {
 public:
  TreeGatherAndBroadcast(int ranks, int rank)
      : tree_{ranks, rank}, missing_(tree_.children().size()) {}

  void start(ScheduleActions& actions) override {
    for (const int child : tree_.children()) {
      actions.receive(child, Tree::kUp);
    }
    if (tree_.children().empty()) {
      go_up(actions);
    }
  }
  void sent(ScheduleActions& actions, int part, int to) override {
    if (part == Tree::kUp) {
      actions.receive(to, Tree::kDown);
    }
  }
  void received(ScheduleActions& actions, int part, int /*from*/) override {
    if (part == Tree::kDown) {
      go_down(actions);
    } else if (--missing_ == 0) {
      go_up(actions);
    }
  }

 private:
  void go_up(ScheduleActions& actions) {
    if (tree_.rank > 0) {
      actions.send(tree_.parent(), Tree::kUp);
    } else {
      actions.reduce(0);
      go_down(actions);
    }
  }
  void go_down(ScheduleActions& actions) {
    std::vector<int> children = tree_.children();
    for (auto child = children.rbegin(); child != children.rend(); ++child) {  // longest way first
      actions.send(*child, Tree::kDown);
    }
  }

  Tree tree_;
  size_t missing_;
};

class Exchange final : public Schedule {
 public:
  Exchange(int ranks, int rank) : ranks_(ranks), rank_(rank) {}

  void start(ScheduleActions& actions) override {
    for_others(ranks_, rank_, [&](int other) { actions.receive(other, 0); });
    // As many at once as a direct group has, so that this is one step there.
    for (int i = 1; i < kMostDirect; ++i) {
      go_on(actions);
    }
  }
  void sent(ScheduleActions& actions, int /*part*/, int /*to*/) override {
    if (!sending_.notice()) {
      go_on(actions);
    }
  }
  void received(ScheduleActions& /*actions*/, int /*part*/, int /*from*/) override {}

 private:
  void go_on(ScheduleActions& actions) {
    while (next_ < ranks_ &&
           sending_.at_once([&] { actions.send((rank_ + next_++) % ranks_, 0); })) {
    }
  }

  int ranks_;
  int rank_;
  int next_ = 1;  // distance
  Sending sending_;
};

}  // namespace

DirectLayout DirectLayout::all_reduce(int ranks, int64_t total, int64_t element_bytes) {
  DirectLayout layout = reduce_scatter(ranks, total, element_bytes);
  layout.piece = aligned(divided_up(total, ranks));
  return layout;
}

DirectLayout DirectLayout::reduce_scatter(int ranks, int64_t total, int64_t element_bytes) {
  constexpr int kFullSegments = 4;  // ranks whose slots of the largest segments stay in the cache
  const int64_t bytes = kLargestSegment / std::max(1, ranks / kFullSegments);
  return {.ranks = ranks,
          .total = total,
          .piece = divided_up(total, ranks),
          .segment = std::max(bytes, kSmallestSegment) / element_bytes};
}

int64_t DirectLayout::begin(int rank) const { return std::min(total, rank * piece); }

int64_t DirectLayout::segments(int rank) const {
  return divided_up(begin(rank + 1) - begin(rank), segment);
}

int64_t DirectLayout::count(int rank, int64_t segment) const {
  return std::min(this->segment, begin(rank + 1) - first(rank, segment));
}

namespace {

// Long enough to be worth a message, short enough that the chain is filled soon.
int64_t chain_segment(int ranks, int64_t total, int64_t element_bytes) {
  constexpr int64_t kPerRank = 4;
  const int64_t bytes =
      std::clamp(total * element_bytes / (kPerRank * ranks), kSmallestSegment, kLargestSegment);
  return aligned(bytes / element_bytes);
}

}  // namespace

ChainLayout ChainLayout::all_reduce(int ranks, int64_t total, int64_t element_bytes) {
  const int64_t segment = chain_segment(ranks, total, element_bytes);
  return {.pieces = 1,
          .piece = total,
          .share = segment,
          .shares_per_piece = divided_up(total, segment)};
}

ChainLayout ChainLayout::reduce_scatter(int ranks, int64_t total, int64_t element_bytes) {
  const int64_t segment = chain_segment(ranks, total, element_bytes);
  const int64_t piece = total / ranks;
  ChainLayout layout = {.pieces = ranks, .piece = piece, .share = std::min(segment, piece)};
  if (piece > 0) {
    layout.shares_per_piece = divided_up(piece, layout.share);
    layout.shares_per_segment = layout.shares_per_piece > 1 ? 1 : divided_up(segment, piece);
  }
  return layout;
}

int64_t ChainLayout::first_of_share(int64_t share) const {
  return share % pieces * piece + share / pieces * this->share;
}

int64_t ChainLayout::count_of_share(int64_t share) const {
  return std::min(this->share, piece - share / pieces * this->share);
}

int64_t ChainLayout::count(int64_t segment) const {
  const int64_t last = std::min(shares(), (segment + 1) * shares_per_segment) - 1;
  return first_of_share(last) + count_of_share(last) - first(segment);
}

int Tree::subtree() const { return rank == 0 ? ranks : std::min(rank & -rank, ranks - rank); }

std::vector<int> Tree::children() const {
  std::vector<int> children;
  for (int bit = 1; (rank == 0 || bit < (rank & -rank)) && rank + bit < ranks; bit *= 2) {
    children.push_back(rank + bit);
  }
  return children;
}

std::unique_ptr<Schedule> make_direct_reduce(const DirectLayout& layout,
                                             int rank,
                                             bool all_reduce) {
  return std::make_unique<DirectReduce>(layout, rank, all_reduce);
}

std::unique_ptr<Schedule> make_chain_reduce(const ChainLayout& layout, int ranks, int rank) {
  return std::make_unique<ChainReduce>(layout, ranks, rank);
}

std::unique_ptr<Schedule> make_ring_gather(int ranks, int rank) {
  return std::make_unique<RingGather>(ranks, rank);
}

std::unique_ptr<Schedule> make_tree_gather_and_broadcast(int ranks, int rank) {
  return std::make_unique<TreeGatherAndBroadcast>(ranks, rank);
}

std::unique_ptr<Schedule> make_exchange(int ranks, int rank) {
  return std::make_unique<Exchange>(ranks, rank);
}

}  // namespace tapestry

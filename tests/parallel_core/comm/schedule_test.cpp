// The schedules of whole groups, played through without data: how many messages a rank sends, how
// many at most at once, that every order of arrival comes to an end, and in which order sums are
// made.
#include "parallel_core/comm/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <unordered_map>
#include <vector>

namespace tapestry {
namespace {

constexpr int64_t kModel = 123'568'128;  // gradients of the 124M model, float32

// Which message that is on its way arrives next.
enum class Order { kFirst, kLast, kRandom };

class Play {
 public:
  using Make = std::function<std::unique_ptr<Schedule>(int rank)>;

  Play(int ranks, const Make& make, Order order = Order::kFirst) : order_(order) {
    for (int rank = 0; rank < ranks; ++rank) {
      ranks_.push_back(std::make_unique<Rank>(*this, rank, make(rank)));
    }
  }

  void run() {
    for (const auto& rank : ranks_) {
      rank->schedule->start(*rank);
    }
    while (!on_their_way_.empty()) {
      const Message message = take();
      Rank& from = *ranks_[static_cast<size_t>(message.from)];
      Rank& to = *ranks_[static_cast<size_t>(message.to)];
      --from.under_way;
      if (on_arrival) {
        on_arrival(message.from, message.to, message.part);
      }
      // The sender hears of it before or after the receiver.
      if (order_ != Order::kLast) {
        from.schedule->sent(from, message.part, message.to);
      }
      to.schedule->received(to, message.part, message.from);
      if (order_ == Order::kLast) {
        from.schedule->sent(from, message.part, message.to);
      }
    }
    for (const auto& rank : ranks_) {
      EXPECT_TRUE(rank->open.empty()) << "messages that nobody sent or received";
    }
  }

  int64_t sends(int rank) const { return ranks_[static_cast<size_t>(rank)]->sends; }
  int64_t most_sends() const { return most(&Rank::sends); }
  int64_t all_sends() const {
    int64_t sum = 0;
    for (const auto& rank : ranks_) {
      sum += rank->sends;
    }
    return sum;
  }
  int64_t peak_under_way() const { return most(&Rank::peak); }
  int64_t peers(int rank) const {
    return static_cast<int64_t>(ranks_[static_cast<size_t>(rank)]->peers.size());
  }

  std::function<void(int from, int to, int part)> on_arrival;
  std::function<void(int rank, int64_t segment)> on_reduce;

 private:
  struct Message {
    int from;
    int to;
    int part;
  };
  struct Rank final : ScheduleActions {
    Rank(Play& play_, int rank_, std::unique_ptr<Schedule> schedule_)
        : play(play_), rank(rank_), schedule(std::move(schedule_)) {}
    void send(int to, int part) override {
      ++sends;
      peak = std::max(peak, ++under_way);
      peers[to] = true;
      play.ranks_[static_cast<size_t>(to)]->meet(rank, part, 1);
    }
    void receive(int from, int part) override { meet(from, part, 2); }
    void reduce(int64_t segment) override {
      if (play.on_reduce) {
        play.on_reduce(rank, segment);
      }
    }
    // A message goes when it has been both sent and expected.
    void meet(int from, int part, int side) {
      const uint64_t key = static_cast<uint64_t>(from) << 32U | static_cast<uint64_t>(part);
      int& sides = open[key];
      EXPECT_EQ(sides & side, 0) << "twice: part " << part << " from rank " << from;
      sides |= side;
      if (sides == 3) {
        open.erase(key);
        play.on_their_way_.push_back({from, rank, part});
      }
    }

    Play& play;
    int rank;
    std::unique_ptr<Schedule> schedule;
    std::unordered_map<uint64_t, int> open;
    std::unordered_map<int, bool> peers;
    int64_t sends = 0;
    int64_t under_way = 0;
    int64_t peak = 0;
  };

  Message take() {
    if (order_ == Order::kRandom) {
      std::swap(on_their_way_[random_() % on_their_way_.size()], on_their_way_.front());
    } else if (order_ == Order::kLast) {
      std::swap(on_their_way_.back(), on_their_way_.front());
    }
    const Message message = on_their_way_.front();
    on_their_way_.pop_front();
    return message;
  }
  int64_t most(int64_t Rank::*count) const {
    int64_t most = 0;
    for (const auto& rank : ranks_) {
      most = std::max(most, (*rank).*count);
    }
    return most;
  }

  Order order_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::deque<Message> on_their_way_;
  std::mt19937 random_{7};
};

// Follows the sums of a chain: each rank adds to what all before it have, and to nothing else.
class ChainSums {
 public:
  ChainSums(Play& play, const ChainLayout& layout, int ranks)
      : ranks_(ranks),
        sums_(static_cast<size_t>(ranks) * static_cast<size_t>(layout.segments()), 0),
        segments_(layout.segments()) {
    play.on_arrival = [this](int from, int to, int part) {
      if (ChainLayout::is_sum(part)) {
        EXPECT_EQ(to, from + 1);
        sum(to, part / 2) = from == 0 ? 1 : sum(from, part / 2);
      } else {
        ++results_;
      }
    };
    play.on_reduce = [this](int rank, int64_t segment) {
      EXPECT_EQ(sum(rank, segment), rank) << "contributions before the rank's own";
      sum(rank, segment) = rank + 1;
    };
  }
  void expect_complete(int64_t results) {
    for (int64_t segment = 0; segment < segments_; ++segment) {
      EXPECT_EQ(sum(ranks_ - 1, segment), ranks_);
    }
    EXPECT_EQ(results_, results);
  }

 private:
  int& sum(int rank, int64_t segment) {
    return sums_[static_cast<size_t>(rank * segments_ + segment)];
  }
  int ranks_;
  std::vector<int> sums_;
  int64_t segments_;
  int64_t results_ = 0;
};

Play::Make chain(const ChainLayout& layout, int ranks) {
  return [=](int rank) { return make_chain_reduce(layout, ranks, rank); };
}

void expect_fair_segments(const ChainLayout& layout, int64_t total) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (int64_t segment = 0; segment < layout.segments(); ++segment) {
    ranges.emplace_back(layout.first(segment), layout.count(segment));
    if (segment + 1 < layout.segments() && layout.shares_per_piece == 1) {
      EXPECT_GE(layout.count(segment) * 4, kSmallestSegment);
    }
    EXPECT_LE(layout.count(segment) * 4, 2 * kLargestSegment);
  }
  std::sort(ranges.begin(), ranges.end());
  int64_t end = 0;
  for (const auto& [first, count] : ranges) {
    EXPECT_EQ(first, end);
    end = first + count;
  }
  EXPECT_EQ(end, total);
}

TEST(Schedule, AllReduceOfManyRanks) {
  struct Case {
    int ranks;
    int64_t elements;
    int64_t messages;  // of a rank; of the model, as docs/scaling.md has them
  };
  constexpr int64_t kSmall = 1'000'000;  // of 4096 ranks the model takes a minute
  const Case kCases[] = {{9, kModel, 1886},
                         {64, kModel, 1886},
                         {256, kModel, 2048},
                         {1024, kModel, 8182},
                         {4096, kSmall, 124}};
  for (const auto& [ranks, elements, messages] : kCases) {
    SCOPED_TRACE(ranks);
    const ChainLayout layout = ChainLayout::all_reduce(ranks, elements, 4);
    expect_fair_segments(layout, elements);
    Play play(ranks, chain(layout, ranks));
    ChainSums sums(play, layout, ranks);
    play.run();
    sums.expect_complete((ranks - 1) * layout.segments());
    EXPECT_EQ(play.most_sends(), 2 * layout.segments());
    EXPECT_EQ(play.most_sends(), messages);
    EXPECT_EQ(play.peers(1), 2);
    EXPECT_LE(play.peak_under_way(), 2 * kWindow);
  }
  // As docs/scaling.md has it.
  EXPECT_EQ(2 * ChainLayout::all_reduce(4096, kModel, 4).segments(), 15084);
}

TEST(Schedule, ReduceScatterOfManyRanks) {
  for (const int ranks : {9, 64, 256, 1024, 4096}) {
    // The 124M model; a bucket whose pieces are smaller than a segment; hardly anything.
    const int64_t large = ranks <= 1024 ? kModel / ranks / 64 * 64 : 500;
    for (const int64_t piece :
         {large, large == 500 ? 100 : int64_t{5000}, int64_t{1}, int64_t{0}}) {
      SCOPED_TRACE(::testing::Message() << ranks << " ranks, pieces of " << piece);
      const ChainLayout layout = ChainLayout::reduce_scatter(ranks, piece * ranks, 4);
      expect_fair_segments(layout, piece * ranks);
      Play play(ranks, chain(layout, ranks));
      ChainSums sums(play, layout, ranks);
      play.run();
      sums.expect_complete((ranks - 1) * layout.shares_per_piece);
      EXPECT_EQ(play.sends(0), layout.segments());
      EXPECT_EQ(play.sends(ranks - 1), (ranks - 1) * layout.shares_per_piece);
      EXPECT_LE(play.peak_under_way(), kWindow);
    }
  }
}

TEST(Schedule, AllGatherOfManyRanks) {
  for (const int ranks : {9, 64, 256, 1024}) {
    SCOPED_TRACE(ranks);
    Play play(ranks, [=](int rank) { return make_ring_gather(ranks, rank); });
    std::vector<int> pieces(static_cast<size_t>(ranks), 1);
    play.on_arrival = [&](int from, int to, int part) {
      EXPECT_EQ(to, (from + 1) % ranks);
      EXPECT_NE(to, part);
      ++pieces[static_cast<size_t>(to)];
    };
    play.run();
    EXPECT_EQ(pieces, std::vector<int>(static_cast<size_t>(ranks), ranks));
    EXPECT_EQ(play.most_sends(), ranks - 1);
    EXPECT_LE(play.peak_under_way(), kWindow);
  }
}

TEST(Schedule, SmallTensorsOfManyRanks) {
  for (const int ranks : {9, 11, 64, 100, 1024, 4096}) {
    SCOPED_TRACE(ranks);
    Play play(ranks, [=](int rank) { return make_tree_gather_and_broadcast(ranks, rank); });
    std::vector<int> have(static_cast<size_t>(ranks), 1);
    std::vector<int> results(have.size(), 0);
    play.on_arrival = [&](int from, int to, int part) {
      if (part == Tree::kUp) {
        EXPECT_EQ((Tree{ranks, from}).subtree(), have[static_cast<size_t>(from)]);
        have[static_cast<size_t>(to)] += have[static_cast<size_t>(from)];
      } else {
        ++results[static_cast<size_t>(to)];
      }
    };
    play.on_reduce = [&](int rank, int64_t /*segment*/) {
      EXPECT_EQ(rank, 0);
      EXPECT_EQ(have[0], ranks);
      results[0] = 1;
    };
    play.run();
    EXPECT_EQ(results, std::vector<int>(have.size(), 1));
    EXPECT_EQ(play.all_sends(), 2 * (ranks - 1));
    EXPECT_LE(play.peak_under_way(), 12);  // the levels of a tree of 4096 ranks
  }
}

TEST(Schedule, AnExchangeHasAFewSendsUnderWay) {
  for (const int ranks : {2, 8, 64, 1024}) {
    Play play(ranks, [=](int rank) { return make_exchange(ranks, rank); });
    play.run();
    EXPECT_EQ(play.most_sends(), ranks - 1);
    EXPECT_EQ(play.all_sends(), int64_t{ranks} * (ranks - 1));
    EXPECT_LE(play.peak_under_way(), kMostDirect - 1);
  }
}

TEST(Schedule, DirectReductionsOfFewRanks) {
  for (const bool all_reduce : {true, false}) {
    for (int ranks = 2; ranks <= kMostDirect; ++ranks) {
      SCOPED_TRACE(::testing::Message() << ranks << " ranks, all_reduce " << all_reduce);
      const int64_t total = kModel / ranks * ranks;
      const DirectLayout layout = all_reduce ? DirectLayout::all_reduce(ranks, total, 4)
                                             : DirectLayout::reduce_scatter(ranks, total, 4);
      EXPECT_GE(layout.segment * 4, kSmallestSegment);
      Play play(ranks, [&](int rank) { return make_direct_reduce(layout, rank, all_reduce); });
      std::vector<int64_t> reduced(static_cast<size_t>(ranks), 0);
      play.on_reduce = [&](int rank, int64_t /*segment*/) { ++reduced[static_cast<size_t>(rank)]; };
      play.run();
      int64_t expected = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(reduced[static_cast<size_t>(rank)], layout.segments(rank));
        expected += (all_reduce ? 2 : 1) * (ranks - 1) * layout.segments(rank);
      }
      EXPECT_EQ(play.all_sends(), expected);
      EXPECT_LE(play.peak_under_way(), 2 * kWindow * (ranks - 1));
    }
  }
}

TEST(Schedule, AnyOrderOfArrivalComesToAnEnd) {
  for (const Order order : {Order::kFirst, Order::kLast, Order::kRandom}) {
    for (const int ranks : {9, 13, 32}) {
      for (const int64_t piece : {40000, 3000}) {
        const ChainLayout all = ChainLayout::all_reduce(ranks, piece * ranks, 4);
        Play reduce(ranks, chain(all, ranks), order);
        ChainSums sums(reduce, all, ranks);
        reduce.run();
        sums.expect_complete((ranks - 1) * all.segments());
        EXPECT_LE(reduce.peak_under_way(), 2 * kWindow);

        const ChainLayout pieces = ChainLayout::reduce_scatter(ranks, piece * ranks, 4);
        Play scatter(ranks, chain(pieces, ranks), order);
        ChainSums scattered(scatter, pieces, ranks);
        scatter.run();
        scattered.expect_complete((ranks - 1) * pieces.shares_per_piece);
        EXPECT_LE(scatter.peak_under_way(), kWindow);
      }
      Play gather(
          ranks, [=](int rank) { return make_ring_gather(ranks, rank); }, order);
      gather.run();
      EXPECT_EQ(gather.most_sends(), ranks - 1);
    }
    for (const int ranks : {2, 3, 8}) {
      const DirectLayout layout = DirectLayout::all_reduce(ranks, 5'000'000, 4);
      Play play(
          ranks, [&](int rank) { return make_direct_reduce(layout, rank, true); }, order);
      play.run();
      EXPECT_LE(play.peak_under_way(), 2 * kWindow * (ranks - 1));
    }
  }
}

}  // namespace
}  // namespace tapestry

#include "parallel_core/comm/simulated_ranks.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/comm/transport.h"

namespace tapestry {

namespace {

class SimulatedTransfer final : public Transfer {
 public:
  bool done() override { return done_.load(std::memory_order_acquire); }
  void set_done() { done_.store(true, std::memory_order_release); }

 private:
  std::atomic<bool> done_{false};
};

// What happens, in the order of its time. Things happen only while every rank waits, one after the
// other, until one of them goes on: so their order is that of the simulated time alone.
class SimulatedNetwork {
 public:
  SimulatedNetwork(int ranks, const MessageCost& cost)
      : cost_(cost), ranks_(static_cast<size_t>(ranks)), running_(ranks) {}

  int size() const { return static_cast<int>(ranks_.size()); }

  double now(int rank) {
    const std::scoped_lock lock(mutex_);
    return at(rank).clock;
  }

  void compute(int rank, double seconds) {
    const std::scoped_lock lock(mutex_);
    at(rank).clock += seconds;
  }

  std::shared_ptr<Transfer> send(int from, int to, const Envelope& envelope, const void* data) {
    check<ValueError>(from != to, "simulated ranks: rank ", from, " sends to itself");
    const std::scoped_lock lock(mutex_);
    auto arrival = std::make_shared<Arrival>();
    arrival->envelope = envelope;
    std::shared_ptr<SimulatedTransfer> transfer;
    int64_t bytes = envelope.bytes;
    if (bytes > Envelope::kInlineBytes) {
      arrival->remote_data = data;
      arrival->remote_transfer = transfer = std::make_shared<SimulatedTransfer>();
      bytes = 0;
    } else if (bytes > 0) {
      const auto* begin = static_cast<const std::byte*>(data);
      arrival->inline_data.assign(begin, begin + bytes);
    }
    if (envelope.kind == Envelope::Kind::kControl) {
      // Of the job's watching, not of its work.
      happens(at(from).clock, from, [=, this] { arrives(to, arrival, /*clock=*/0); });
      return nullptr;
    }
    at(from).clock += cost_.overhead;
    happens(at(from).clock, from, [=, this] {
      carry(from, to, bytes, nullptr,
            [=, this](double time) { arrives(to, arrival, time + cost_.overhead); });
    });
    return transfer;
  }

  // Asks the sender for the data. They are copied at once: nobody touches them before the end.
  std::shared_ptr<Transfer> fetch(int to, const Arrival& arrival, void* data) {
    const std::scoped_lock lock(mutex_);
    const int from = arrival.envelope.source;
    const int64_t bytes = arrival.envelope.bytes;
    std::memcpy(data, arrival.remote_data, static_cast<size_t>(bytes));
    auto received = std::make_shared<SimulatedTransfer>();
    const auto sent = std::static_pointer_cast<SimulatedTransfer>(arrival.remote_transfer);
    happens(at(to).clock + cost_.latency, to, [=, this] {
      carry(
          from, to, bytes, [=, this](double time) { ends(from, *sent, time); },
          [=, this](double time) { ends(to, *received, time); });
    });
    return received;
  }

  std::optional<Arrival> next_arrival(int rank) {
    const std::scoped_lock lock(mutex_);
    Rank& own = at(rank);
    if (own.arrivals.empty()) {
      return std::nullopt;
    }
    auto [clock, arrival] = std::move(own.arrivals.front());
    own.arrivals.pop_front();
    // The overhead is in it, unless the rank was busy at that time.
    own.clock = std::max(clock, clock > 0 ? own.clock + cost_.overhead : own.clock);
    return std::move(*arrival);
  }

  // Until something has happened to the rank. Where nothing can happen any more it comes back after
  // a while, so that the rank's watch finds out why.
  void pause(int rank) {
    constexpr auto kLookAgain = std::chrono::milliseconds(20);
    std::unique_lock lock(mutex_);
    stop_running();
    at(rank).changed.wait_for(lock, kLookAgain, [&] { return at(rank).has_news; });
    if (!at(rank).has_news) {
      ++running_;  // whoever brings news counts the rank that gets it
    }
    at(rank).has_news = false;
  }

  void leave(int rank) {
    const std::scoped_lock lock(mutex_);
    at(rank).has_left = true;
    stop_running();
  }

 private:
  // Small messages pass large ones, as packets do; those of a kind follow one another.
  struct Link {
    double free_for_small = 0;
    double free_for_large = 0;

    /// When a message that may begin at `time` does.
    double carry(double time, bool is_small, double seconds) {
      double& free = is_small ? free_for_small : free_for_large;
      const double begin = std::max(time, free);
      free = begin + seconds;
      if (is_small) {
        free_for_large = std::max(free_for_large, time) + seconds;
      }
      return begin;
    }
  };
  struct Rank {
    double clock = 0;
    Link out;
    Link in;
    uint64_t events = 0;
    std::deque<std::pair<double, std::shared_ptr<Arrival>>> arrivals;
    bool has_news = false;
    bool has_left = false;
    std::condition_variable changed;
  };
  struct Event {
    double time;
    int rank;  // of those at the same time the lower one's first, its own in their order
    uint64_t number;
    std::function<void()> action;
    bool operator<(const Event& other) const {  // of the queue, which has the largest on top
      return std::tie(other.time, other.rank, other.number) < std::tie(time, rank, number);
    }
  };
  using Told = std::function<void(double time)>;

  Rank& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }

  void happens(double time, int rank, std::function<void()> action) {
    events_.push({time, rank, at(rank).events++, std::move(action)});
  }

  void stop_running() {
    --running_;
    while (running_ == 0 && !events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      time_ = event.time;
      event.action();
    }
  }

  // Over the sender's link, which is free or will be, and the receiver's.
  void carry(int from, int to, int64_t bytes, const Told& sent, const Told& arrived) {
    const double seconds = static_cast<double>(bytes) * cost_.per_byte;
    const bool is_small = bytes <= Envelope::kInlineBytes;
    const double begin = at(from).out.carry(time_, is_small, seconds);
    if (sent) {
      happens(begin + seconds, from, [=] { sent(begin + seconds); });
    }
    happens(begin + cost_.latency, from, [=, this] {
      const double end = at(to).in.carry(time_, is_small, seconds) + seconds;
      happens(end, from, [=] { arrived(end); });
    });
  }

  void arrives(int rank, const std::shared_ptr<Arrival>& arrival, double clock) {
    at(rank).arrivals.emplace_back(clock, arrival);
    wake(rank);
  }

  void ends(int rank, SimulatedTransfer& transfer, double time) {
    transfer.set_done();
    at(rank).clock = std::max(at(rank).clock, time);
    wake(rank);
  }

  void wake(int rank) {
    Rank& woken = at(rank);
    if (!woken.has_news && !woken.has_left) {
      woken.has_news = true;
      ++running_;
      woken.changed.notify_one();
    }
  }

  MessageCost cost_;
  std::mutex mutex_;  // guards everything below
  std::vector<Rank> ranks_;
  std::priority_queue<Event> events_;
  double time_ = 0;
  int running_;
};

class SimulatedTransport final : public Transport {
 public:
  SimulatedTransport(SimulatedNetwork& network, int rank) : network_(network), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return network_.size(); }
  std::shared_ptr<Transfer> send(int destination,
                                 const Envelope& envelope,
                                 const void* data) override {
    return network_.send(rank_, destination, envelope, data);
  }
  std::optional<Arrival> next_arrival() override { return network_.next_arrival(rank_); }
  std::shared_ptr<Transfer> fetch(const Arrival& arrival, void* data) override {
    return network_.fetch(rank_, arrival, data);
  }
  void pause(double /*idle_seconds*/) override { network_.pause(rank_); }
  void leave() override { network_.leave(rank_); }

 private:
  SimulatedNetwork& network_;
  int rank_;
};

class RankClock final : public SimulatedClock {
 public:
  RankClock(SimulatedNetwork& network, int rank) : network_(network), rank_(rank) {}
  double now() const override { return network_.now(rank_); }
  void compute(double seconds) override { network_.compute(rank_, seconds); }

 private:
  SimulatedNetwork& network_;
  int rank_;
};

}  // namespace

double simulate_ranks(int ranks,
                      const MessageCost& cost,
                      const std::function<void(ProcessGroup& world, SimulatedClock& clock)>& body) {
  SimulatedNetwork network(ranks, cost);
  std::vector<double> ends(static_cast<size_t>(ranks), 0);
  run_thread_ranks(
      ranks,
      [&](const std::shared_ptr<ProcessGroup>& world) {
        RankClock clock(network, world->rank());
        body(*world, clock);
        ends[static_cast<size_t>(world->rank())] = clock.now();
      },
      {.progress = CommProgress::kWait, .wrap_transport = [&](std::unique_ptr<Transport> inner) {
         return std::make_unique<SimulatedTransport>(network, inner->rank());
       }});
  return *std::max_element(ends.begin(), ends.end());
}

}  // namespace tapestry

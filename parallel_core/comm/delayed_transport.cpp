#include "parallel_core/comm/delayed_transport.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/comm/forwarding_transport.h"

namespace tapestry {

namespace {

// Processes of one host read the same steady clock.
int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class DelayedTransport final : public ForwardingTransport {
 public:
  DelayedTransport(std::unique_ptr<Transport> inner, double message_seconds)
      : ForwardingTransport(std::move(inner)),
        message_ns_(static_cast<int64_t>(message_seconds * 1e9)),
        link_is_free_at_(static_cast<size_t>(size()), 0),
        held_(link_is_free_at_.size()) {}

  std::shared_ptr<Transfer> send(int destination,
                                 const Envelope& envelope,
                                 const void* data) override {
    int64_t& free_at = link_is_free_at_[static_cast<size_t>(destination)];
    if (envelope.kind == Envelope::Kind::kData) {
      free_at = std::max(free_at, now_ns()) + message_ns_;
    }
    Envelope stamped = envelope;
    stamped.due_ns = free_at;
    return ForwardingTransport::send(destination, stamped, data);
  }

  std::optional<Arrival> next_arrival() override {
    while (std::optional<Arrival> arrival = ForwardingTransport::next_arrival()) {
      held_[static_cast<size_t>(arrival->envelope.source)].push_back(std::move(*arrival));
    }
    const int64_t now = now_ns();
    for (std::deque<Arrival>& from_one : held_) {
      if (!from_one.empty() && from_one.front().envelope.due_ns <= now) {
        Arrival arrival = std::move(from_one.front());
        from_one.pop_front();
        return arrival;
      }
    }
    return std::nullopt;
  }

  void pause(double idle_seconds) override {
    constexpr auto kLookAgain = std::chrono::microseconds(100);
    const bool holds = std::any_of(held_.begin(), held_.end(),
                                   [](const auto& from_one) { return !from_one.empty(); });
    if (holds) {
      std::this_thread::sleep_for(kLookAgain);
    } else {
      ForwardingTransport::pause(idle_seconds);
    }
  }

 private:
  int64_t message_ns_;
  std::vector<int64_t> link_is_free_at_;   // to each rank
  std::vector<std::deque<Arrival>> held_;  // from each rank
};

}  // namespace

std::unique_ptr<Transport> make_delayed_transport(std::unique_ptr<Transport> inner,
                                                  double message_seconds) {
  check<ValueError>(message_seconds >= 0, "a message cannot take ", message_seconds, " seconds");
  return std::make_unique<DelayedTransport>(std::move(inner), message_seconds);
}

}  // namespace tapestry

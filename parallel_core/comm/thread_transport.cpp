#include "parallel_core/comm/thread_transport.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>

namespace tapestry {

namespace {

struct Mailbox {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Arrival> arrivals;  // guarded by mutex
  bool news = false;             // guarded by mutex: something happened since the last pause
};
using Mailboxes = std::vector<Mailbox>;

void notify(Mailbox& box) {
  {
    const std::scoped_lock lock(box.mutex);
    box.news = true;
  }
  box.changed.notify_one();
}

// What a sender waits for: the receiver has copied the data.
class CopiedByReceiver final : public Transfer {
 public:
  explicit CopiedByReceiver(Mailbox& sender) : sender_(sender) {}
  bool done() override { return copied_.load(std::memory_order_acquire); }
  void set_done() {
    copied_.store(true, std::memory_order_release);
    notify(sender_);
  }

 private:
  Mailbox& sender_;
  std::atomic<bool> copied_{false};
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<Mailboxes> boxes, int rank)
      : boxes_(std::move(boxes)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(boxes_->size()); }

  std::shared_ptr<Transfer> send(int destination,
                                 const Envelope& envelope,
                                 const void* data) override {
    Arrival arrival;
    arrival.envelope = envelope;
    if (envelope.bytes > Envelope::kInlineBytes) {
      arrival.remote_data = data;
      arrival.remote_transfer = std::make_shared<CopiedByReceiver>(own_box());
    } else if (envelope.bytes > 0) {
      const auto* bytes = static_cast<const std::byte*>(data);
      arrival.inline_data.assign(bytes, bytes + envelope.bytes);
    }
    std::shared_ptr<Transfer> transfer = arrival.remote_transfer;
    Mailbox& box = (*boxes_)[static_cast<size_t>(destination)];
    {
      const std::scoped_lock lock(box.mutex);
      box.arrivals.push_back(std::move(arrival));
      box.news = true;
    }
    box.changed.notify_one();
    return transfer;
  }

  std::optional<Arrival> next_arrival() override {
    Mailbox& box = own_box();
    const std::scoped_lock lock(box.mutex);
    if (box.arrivals.empty()) {
      return std::nullopt;
    }
    Arrival arrival = std::move(box.arrivals.front());
    box.arrivals.pop_front();
    return arrival;
  }

  std::shared_ptr<Transfer> fetch(const Arrival& arrival, void* data) override {
    std::memcpy(data, arrival.remote_data, static_cast<size_t>(arrival.envelope.bytes));
    static_cast<CopiedByReceiver&>(*arrival.remote_transfer).set_done();
    return nullptr;
  }

  void pause(double /*idle_seconds*/) override {
    // What comes wakes the rank at once. Thousands that only look around would leave the cores to
    // nobody else.
    constexpr auto kLongestPause = std::chrono::milliseconds(20);
    constexpr int kManyRanks = 256;
    Mailbox& box = own_box();
    std::unique_lock lock(box.mutex);
    box.changed.wait_for(lock, kLongestPause * std::max(1, size() / kManyRanks),
                         [&] { return box.news; });
    box.news = false;
  }

 private:
  Mailbox& own_box() { return (*boxes_)[static_cast<size_t>(rank_)]; }

  std::shared_ptr<Mailboxes> boxes_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> make_thread_transports(int size) {
  const auto boxes = std::make_shared<Mailboxes>(static_cast<size_t>(size));
  std::vector<std::unique_ptr<Transport>> transports;
  transports.reserve(static_cast<size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    transports.push_back(std::make_unique<ThreadTransport>(boxes, rank));
  }
  return transports;
}

}  // namespace tapestry

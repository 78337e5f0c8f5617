#include "text/util/heartbeat.h"

#include <utility>

namespace tapestry::data {

Heartbeat::Heartbeat(std::chrono::milliseconds interval,
                     std::function<void(int64_t seconds)> tell) {
  if (!tell) {
    return;
  }
  thread_ = std::thread([this, interval, tell = std::move(tell)] {
    const auto start = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    while (!over_.wait_for(lock, interval, [this] { return is_over_; })) {
      tell(
          std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - start)
              .count());
    }
  });
}

Heartbeat::~Heartbeat() {
  if (thread_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    over_.notify_all();
    thread_.join();
  }
}

}  // namespace tapestry::data

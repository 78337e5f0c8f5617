// A sign of life of work that says nothing by itself.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace tapestry::data {

/// Takes a line about work that goes on. May be called from other threads, never from two at once.
using WorkReport = std::function<void(const std::string& message)>;

/// Calls `tell` with the seconds since the start, from a thread of its own, whenever `interval` has
/// passed, while it lives. An empty `tell` starts no thread.
class Heartbeat {
 public:
  Heartbeat(std::chrono::milliseconds interval, std::function<void(int64_t seconds)> tell);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace tapestry::data

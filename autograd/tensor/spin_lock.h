// A lock of one byte for sections of a few instructions.
#pragma once

#include <atomic>
#include <thread>

namespace tapestry {

/// Meets the standard's Lockable, for std::lock_guard. Nothing that may take long (an allocation of
/// fresh memory, a kernel, a hook) belongs inside.
class SpinLock {
 public:
  SpinLock() = default;
  SpinLock(const SpinLock&) = delete;
  SpinLock& operator=(const SpinLock&) = delete;

  void lock() noexcept {
    while (!try_lock()) {
      while (taken_.load(std::memory_order_relaxed)) {
        std::this_thread::yield();
      }
    }
  }
  bool try_lock() noexcept { return !taken_.exchange(true, std::memory_order_acquire); }
  void unlock() noexcept { taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> taken_{false};
};

}  // namespace tapestry

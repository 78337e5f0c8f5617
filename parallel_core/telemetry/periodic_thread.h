// Work that waits for a disk, away from the training.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace tapestry::telemetry {

/// A thread of its own that calls a function when there is news, at most once in an interval. It
/// sleeps in between and takes no signals.
class PeriodicThread {
 public:
  /// The work throws nothing and outlives the object.
  PeriodicThread(const char* name, double interval_seconds, std::function<void()> work);
  PeriodicThread(const PeriodicThread&) = delete;
  PeriodicThread& operator=(const PeriodicThread&) = delete;
  ~PeriodicThread();

  /// There is news: the work is done when the interval has passed since it was done last.
  void changed();
  /// Ends the thread, when it is through with what it does. Twice is once.
  void end() noexcept;

 private:
  void run();

  double interval_;
  std::function<void()> work_;
  std::mutex mutex_;
  std::condition_variable wakes_;
  bool changed_ = false;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace tapestry::telemetry

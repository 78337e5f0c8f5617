// The thread that moves a rank's collectives on while the rank computes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace tapestry {

/// Calls `step` again and again while `has_work` says true, both with the mutex held; asleep, until
/// wake(), while it says false. After steps without news it sleeps from 50 microseconds, doubling
/// up to a millisecond, so that it takes next to nothing from a rank that shares its core. Its
/// loops run on it alone, and signals go to the other threads.
class BackgroundProgress {
 public:
  /// `step` returns whether anything happened, and throws nothing.
  BackgroundProgress(std::mutex& mutex, std::function<bool()> has_work, std::function<bool()> step);
  BackgroundProgress(const BackgroundProgress&) = delete;
  BackgroundProgress& operator=(const BackgroundProgress&) = delete;
  /// Ends the thread. The mutex must not be held.
  ~BackgroundProgress();

  /// There is work, perhaps for the first time. Called with the mutex held.
  void wake();

 private:
  void run();

  std::mutex& mutex_;
  std::function<bool()> has_work_;
  std::function<bool()> step_;
  std::condition_variable changed_;
  bool asleep_ = false;  // guarded by the mutex, as is stop_
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tapestry

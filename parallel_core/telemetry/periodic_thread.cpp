#include "parallel_core/telemetry/periodic_thread.h"

#include <chrono>
#include <utility>

#include "parallel_core/telemetry/quiet_thread.h"

namespace tapestry::telemetry {

PeriodicThread::PeriodicThread(const char* name,
                               double interval_seconds,
                               std::function<void()> work)
    : interval_(interval_seconds),
      work_(std::move(work)),
      thread_(start_quiet_thread(name, [this] { run(); })) {}

PeriodicThread::~PeriodicThread() { end(); }

void PeriodicThread::changed() {
  const std::lock_guard lock(mutex_);
  changed_ = true;  // the thread looks when its interval has passed: nobody is woken
}

void PeriodicThread::run() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    wakes_.wait_for(lock, std::chrono::duration<double>(interval_), [this] { return ends_; });
    if (!ends_ && std::exchange(changed_, false)) {
      lock.unlock();
      work_();
      lock.lock();
    }
  }
}

void PeriodicThread::end() noexcept {
  if (!thread_.joinable()) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wakes_.notify_one();
  thread_.join();
}

}  // namespace tapestry::telemetry

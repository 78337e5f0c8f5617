#include "parallel_core/telemetry/periodic_file.h"

#include <chrono>
#include <exception>
#include <utility>

#include "autograd/io/atomic_file.h"
#include "parallel_core/telemetry/quiet_thread.h"

namespace tapestry::telemetry {

PeriodicFile::PeriodicFile(std::string path,
                           double interval_seconds,
                           std::function<std::string()> content)
    : path_(std::move(path)), interval_(interval_seconds), content_(std::move(content)) {
  write_file_atomically(path_, content_());
  thread_ = start_quiet_thread("metrics-file", [this] { run(); });
}

PeriodicFile::~PeriodicFile() { finish(); }

void PeriodicFile::changed() {
  const std::lock_guard lock(mutex_);
  changed_ = true;  // the thread looks when its interval has passed: nobody is woken
}

std::string PeriodicFile::take_failure() {
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_, {});
}

void PeriodicFile::run() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    wakes_.wait_for(lock, std::chrono::duration<double>(interval_), [this] { return ends_; });
    if (!ends_ && std::exchange(changed_, false)) {
      lock.unlock();
      write();
      lock.lock();
    }
  }
}

void PeriodicFile::write() noexcept {
  std::string failure;
  try {
    write_file_atomically(path_, content_());
  } catch (const std::exception& error) {
    failure = error.what();
  }
  const std::lock_guard lock(mutex_);
  if (failure != last_failure_) {
    last_failure_ = failure;
    failure_ = failure;
  }
}

void PeriodicFile::finish() noexcept {
  if (!thread_.joinable()) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wakes_.notify_one();
  thread_.join();
  write();
}

}  // namespace tapestry::telemetry

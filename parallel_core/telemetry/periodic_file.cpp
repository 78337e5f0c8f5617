#include "parallel_core/telemetry/periodic_file.h"

#include <exception>
#include <utility>

#include "autograd/io/atomic_file.h"

namespace tapestry::telemetry {

PeriodicFile::PeriodicFile(std::string path,
                           double interval_seconds,
                           std::function<std::string()> content)
    : path_(std::move(path)),
      content_(std::move(content)),
      thread_("metrics-file", interval_seconds, [this] { write(); }) {
  write_file_atomically(path_, content_());
}

std::string PeriodicFile::take_failure() {
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_, {});
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
  thread_.end();
  write();
}

}  // namespace tapestry::telemetry

// A small file that is written anew every few seconds.
#pragma once

#include <functional>
#include <mutex>
#include <string>

#include "parallel_core/telemetry/periodic_thread.h"

namespace tapestry::telemetry {

/// Writes a file from a thread of its own, so that whoever has news never waits for a disk. Readers
/// see one version or the next, never a part (AtomicFile).
class PeriodicFile {
 public:
  /// Writes the first version before it returns. `content` is called by the thread too. IoError if
  /// it cannot be written.
  PeriodicFile(std::string path, double interval_seconds, std::function<std::string()> content);

  /// There is news: the next version is written when the interval has passed since the last one.
  void changed() { thread_.changed(); }
  /// Ends the thread and writes the last version.
  void finish() noexcept;
  /// Why versions could not be written, once for each reason; empty if there is nothing to say.
  std::string take_failure();

 private:
  void write() noexcept;

  std::string path_;
  std::function<std::string()> content_;
  std::mutex mutex_;
  std::string failure_;  // not yet taken
  std::string last_failure_;
  PeriodicThread thread_;  // the last member: what it uses is there before and after it
};

}  // namespace tapestry::telemetry

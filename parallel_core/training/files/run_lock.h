// The lock of an output folder: a file that says which process is in it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tapestry {

/// Who holds a lock.
struct LockHolder {
  std::string host;
  int64_t pid = 0;
  std::string started;        ///< local time at which the lock was taken
  std::string boot_id;        ///< of the kernel that the process runs on
  int64_t process_start = 0;  ///< clock ticks after the boot, which tell a number's users apart
  std::string command;        ///< the process's command line, for people

  /// The calling process.
  static LockHolder self();
  /// "process 1234 on host alpha, since 2026-11-22 16:05:03 (pretrain_gpt ...)".
  std::string describe() const;
  /// Whether this kernel runs the process and this process can see it: what is needed to signal it.
  bool is_reachable() const;
};

/// A file that exists while a process holds it. On one machine the kernel's lock on it (flock)
/// decides, which ends with its process however that ends; so what a killed process leaves is stale
/// and is taken over. A holder on another machine is believed, since some network file systems keep
/// such locks to each machine.
class RunLock {
 public:
  /// Takes the lock. Null if somebody else has it; `holder` is then who. IoError if the file cannot
  /// be written.
  static std::unique_ptr<RunLock> take(const std::string& path, LockHolder& holder);

  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  /// Removes the file.
  ~RunLock();

  /// Whom a stale lock had named; empty if there was none.
  const std::optional<LockHolder>& previous() const { return previous_; }

 private:
  RunLock(std::string path, int descriptor, std::optional<LockHolder> previous);

  std::string path_;
  int descriptor_;
  std::optional<LockHolder> previous_;
};

/// The holder that a lock file names; empty if it names none. Does not look whether it is stale.
std::optional<LockHolder> read_lock(const std::string& path);

}  // namespace tapestry

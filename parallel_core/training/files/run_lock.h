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
  std::string job;            ///< which is started again after a loss; empty for a run of its own
  int64_t job_start = 0;      ///< the how manyth start of the job

  /// The calling process. Its job is that of TAPESTRY_JOB and TAPESTRY_JOB_START, else that of
  /// SLURM_JOB_ID and SLURM_RESTART_COUNT, else none.
  static LockHolder self();
  /// "process 1234 on host alpha, since 2026-11-22 16:05:03 (pretrain_gpt ...)".
  std::string describe() const;
  /// Whether this kernel runs the process and this process can see it: what is needed to signal it.
  bool is_reachable() const;
  /// Whether whoever starts this job again has seen, or has made sure, that the holder's start is
  /// over: a job has one start at a time.
  bool is_earlier_start_of(const LockHolder& other) const;
};

/// A file that exists while a process holds it. On one machine the kernel's lock on it (flock)
/// decides, which ends with its process however that ends; so what a killed process leaves is stale
/// and is taken over. A holder on another machine is believed, since some network file systems keep
/// such locks to each machine; but for an earlier start of the same job, whose machine may be gone.
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

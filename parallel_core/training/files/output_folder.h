// The output folder of a run: one run at a time, and none that writes over another.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel_core/comm/process_group.h"
#include "parallel_core/training/files/run_lock.h"

namespace tapestry {

/// Name of the lock in an output folder.
inline constexpr const char* kRunLockName = "run.lock";

/// What an earlier run has left in an output folder. Logs do not count, runs append to them.
struct EarlierRun {
  std::vector<std::string> files;  ///< names in the folder; empty: there was none
  int64_t last_step = 0;           ///< of metrics.jsonl
  std::string checkpoint;          ///< path of the latest one; empty if there is none
  std::string written;             ///< local time of the last change
};

/// Looks for metrics.jsonl with a line, checkpoints and dumped tensors; config.yaml and report.html
/// belong to them.
EarlierRun find_earlier_run(const std::string& output_dir);

/// How a run treats what it finds in its output folder.
struct OutputFolderOptions {
  bool overwrite = false;  ///< move the files of an earlier run aside
  bool replace = false;    ///< end a run that is in the folder; implies overwrite unless `resume`
  bool resume = false;     ///< go on with an earlier run: its files stay
  std::function<bool()> stop_requested;  ///< ends the wait for another run's end
};

/// A run's place in its output folder, from construction to destruction. Collective: rank 0 of
/// `world` decides, all of them hear of it.
class OutputFolder {
 public:
  /// ValueError, the same on every rank, for a folder in which somebody trains (unless it is to be
  /// replaced) or has trained (unless it is to be overwritten or gone on with): names who or what,
  /// and what may be done. An earlier start of the same job that has not quite ended is waited for,
  /// five minutes. A run that is replaced gets SIGUSR1, upon which it saves and ends, and
  /// has five minutes for it; ValueError if it is not on this machine. IoError if the folder cannot
  /// be made.
  OutputFolder(std::string output_dir, const OutputFolderOptions& options, ProcessGroup& world);

  /// What was found; on rank 0 alone.
  const EarlierRun& earlier() const { return earlier_; }
  /// Moves it to OUTPUT_DIR/old/run_N, the first number that is free, and returns that path; an
  /// empty text if there is nothing, or if the run goes on with it without `overwrite`. On rank 0,
  /// before the run writes its first file. ValueError, and nothing moved, if one of the files
  /// `in_use` (empty names aside) is among them.
  std::string move_earlier_aside(const std::vector<std::string>& in_use = {});
  /// Before a run goes on with a checkpoint (.../step_NNNNNNNN) of this folder that is not its
  /// newest: moves the checkpoints of later steps, whole or not, and the tensors dumped at later
  /// steps to OUTPUT_DIR/old/run_N, with copies of metrics.jsonl and config.yaml, and returns that
  /// path. An empty text, and nothing moved, if there are no later checkpoints or the checkpoint is
  /// of another folder. On rank 0, before MetricsWriter drops later lines. IoError.
  std::string move_later_aside(const std::string& checkpoint);
  /// For the log: a stale lock that was taken over, a run that was ended. On rank 0.
  const std::vector<std::string>& remarks() const { return remarks_; }

 private:
  enum class Attempt : uint8_t { kTaken, kWaiting, kRefused, kFailed, kNoRoom };
  Attempt attempt(const OutputFolderOptions& options);
  Attempt end_holder(const LockHolder& holder, const OutputFolderOptions& options);
  Attempt wait_for_earlier_start(const LockHolder& holder, const OutputFolderOptions& options);
  void refuse_earlier_run();
  std::string new_folder_aside() const;

  std::string output_dir_;
  std::unique_ptr<RunLock> lock_;
  EarlierRun earlier_;
  std::vector<std::string> remarks_;
  std::string refusal_;
  int64_t attempts_ = 0;
  bool keeps_earlier_ = false;
};

/// Whether a path is in a folder, or the folder itself, links resolved.
bool lies_in(const std::string& path, const std::string& folder);

}  // namespace tapestry

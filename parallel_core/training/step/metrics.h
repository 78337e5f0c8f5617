// metrics.jsonl: one line a step, numbers in full precision.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/tensor/allocator.h"
#include "autograd/tensor/system_memory.h"
#include "parallel_core/training/log/log_fields.h"
#include "parallel_core/training/step/train_one_step.h"

namespace tapestry {

/// What a step's line holds besides its StepResult.
struct StepRecord {
  int64_t step = 0;  ///< from 1 over the whole run
  int64_t epoch = 0;
  double step_time_ms = 0;
  MemoryStats memory;     ///< of the rank's allocator after the step
  ProcessMemory process;  ///< then, of everything that the rank's process has
  std::optional<double> eval_loss;
  std::optional<double> test_loss;
  std::map<std::string, double> eval_values;  ///< of metrics beside the loss, by name
  std::map<std::string, double> test_values;
  std::string hash;  ///< of the step in exact mode, CLASS:HEX; else empty

  // What monitor_config has measured, by tag (docs/monitoring.md).
  std::map<std::string, double> values;  ///< of the whole run
  /// Of single parameters, "local_norm/PARAMETER": of this rank's place on all stages, on the
  /// first.
  std::map<std::string, double> parameter_values;
  std::map<std::string, std::vector<double>> rank_values;  ///< of every rank, in their order
  std::map<std::string, double> scalars;  ///< of this rank: what TensorBoard is to show
  std::optional<double> embedding_local_norm;
  HeadMaxima max_logits;  ///< of the layers of all stages, on the first; empty unless they are due
};

/// One JSON object without a line break. NaN and infinities are written as the strings "nan", "inf"
/// and "-inf", since JSON has no numbers for them.
std::string metrics_line(const StepRecord& record, const StepResult& result);

/// The single values of such a line under the names that they have there, and `lr` of the first
/// group; what lists and maps hold is left out.
LogFields step_fields(const StepRecord& record, const StepResult& result);
/// Of an evaluation alone: what a line has after one, "eval_loss" and so on.
LogFields evaluation_fields(const StepRecord& record);

/// "memory: parameters 1.2 GiB (peak 1.2 GiB), gradients ...": bytes of every kind, and of the
/// process that has them, for the log.
std::string memory_line(const MemoryStats& stats, const ProcessMemory& process);

/// Drops from a file of JSON lines those whose "step" is later, wherever they stand, and a torn
/// last line; all others stay as they are, byte for byte, and a crash in between leaves the file as
/// it was or as it is to be. Nothing if there is no such file. IoError.
void keep_steps_until(const std::string& path, int64_t last_step);

/// Writes the lines of a run.
class MetricsWriter {
 public:
  /// Appends to what is there. With `resume_step`, the step of the checkpoint that a run goes on
  /// with, lines of later steps go first, wherever they stand, and so does the torn last line of a
  /// run that was killed; all others stay as they are, byte for byte, and a crash in between leaves
  /// the file as it was or as it is to be. IoError if it cannot be written, or is no regular file.
  explicit MetricsWriter(const std::string& path, std::optional<int64_t> resume_step = {});
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;
  ~MetricsWriter();

  /// StorageError if the disk is full, or says that it has written and has not; the file then ends
  /// with the last whole line.
  void write(const StepRecord& record, const StepResult& result);
  /// Brings what was written onto the disk, so that a checkpoint never knows of steps which the
  /// file has lost in a power failure. IoError or StorageError.
  void sync();

 private:
  bool reads_back(off_t begin, const std::string& line) const;

  std::string path_;
  int file_ = -1;
};

}  // namespace tapestry

// Whether the disk has room for what a run saves: before it begins, and while it trains.
#pragma once

#include <cstdint>
#include <string>

#include "parallel_core/config/config.h"

namespace tapestry {

/// Bytes of the largest number of checkpoints that a run has on disk at one time, and of one.
struct CheckpointSize {
  int64_t one = 0;
  int64_t at_most = 0;  ///< keep_checkpoint_max and the one that is being written
  int64_t count = 0;    ///< of them
};
CheckpointSize checkpoint_size(const AllConfig& config, int64_t data_parallel_size);

/// What a run's checkpoints take and what is free where its output folder is or will be: a
/// sentence. ValueError if the run saves and there is no room for one checkpoint.
std::string disk_room_text(const AllConfig& config, int64_t data_parallel_size);

/// ValueError if a checkpoint of so many bytes has no room where `directory`, which need not be
/// there yet, is or will be.
void check_room_for_checkpoint(const std::string& directory, int64_t bytes);

/// Says once when what is free has become too little for the next checkpoint, long before it is
/// due, and once when there is room again. On rank 0 alone.
class DiskWatch {
 public:
  /// `directory`: of the checkpoints; empty where nothing is saved. `bytes`: what one takes, 0
  /// where nobody knows yet.
  DiskWatch(std::string directory, int64_t bytes);

  /// After a step.
  void observe(int64_t step);
  /// What one has really taken.
  void set_bytes(int64_t bytes) { bytes_ = bytes; }

 private:
  std::string directory_;
  int64_t bytes_;
  bool is_short_ = false;
};

}  // namespace tapestry

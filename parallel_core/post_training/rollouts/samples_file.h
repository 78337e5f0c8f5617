// samples.jsonl: what the policy has written, a line a completion.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "parallel_core/post_training/grpo/rollout_batch.h"
#include "parallel_core/post_training/rewards/reward_function.h"

namespace tapestry::post_training {

/// Appends to the file; on the first rank of a job alone.
class SamplesFile {
 public:
  /// With what steps after `last_step`, and killed runs, have left in it removed
  /// (keep_steps_until). IoError if it cannot be written.
  SamplesFile(const std::string& path, int64_t last_step);
  SamplesFile(const SamplesFile&) = delete;
  SamplesFile& operator=(const SamplesFile&) = delete;
  ~SamplesFile();

  /// {"step", "prompt", "completion", "rewards": {NAME: number or null}, "advantage", "length",
  /// "truncated", "mean_log_prob"}: the step, from 1, that trains on it first, the prompt as its
  /// line has it, tokens with the one that ends it. IoError, StorageError of a full disk.
  void write(int64_t step,
             const RolloutBatch& batch,
             std::span<const JudgedCompletion> completions);
  /// Brings it onto the disk.
  void sync();

 private:
  std::string path_;
  int file_ = -1;
};

}  // namespace tapestry::post_training

// What a reward model says of a file of texts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel_core/post_training/reward/reward_model.h"

namespace tapestry::post_training {

struct JudgedLine {
  std::string place;            ///< FILE:LINE
  std::vector<double> rewards;  ///< of a pair those of chosen and rejected, else one
};

struct JudgedFile {
  bool has_pairs = false;
  std::vector<JudgedLine> lines;
  int64_t shortened = 0;  ///< texts longer than the context, whose beginning is left out

  /// Of pairs: the share whose chosen text has the higher reward, and the mean lead of these.
  double accuracy() const;
  double mean_lead() const;
  /// Of all texts, or of a pair's first (0) or second (1).
  double mean(int of_pair = -1) const;
};

/// Judges each line of JSON: "chosen" and "rejected", perhaps with "prompt", or "prompt" and
/// "completion"; texts or messages, as the data of task reward are. The first line says which.
/// Copies of the model (data-parallel ranks) share the lines, and all ranks get all rewards.
/// Collective. Errors of read_examples(); ValueError for a file without lines.
JudgedFile judge_file(RewardModel& model, const std::string& file);

}  // namespace tapestry::post_training

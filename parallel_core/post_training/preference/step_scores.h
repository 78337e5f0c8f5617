// What a model gives the completions of a step, before anything is trained on them.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "parallel_core/data/data_source.h"
#include "parallel_core/pipeline_parallel/parallel_model.h"
#include "parallel_core/post_training/reference/log_prob_table.h"
#include "parallel_core/post_training/rows/pack_sequences.h"
#include "parallel_core/post_training/rows/sequence_set.h"

namespace tapestry::post_training {

/// Log-probabilities of the sequences of a set that this rank's micro-batches name, from passes
/// without gradients and with the model in evaluation mode.
class StepScores {
 public:
  /// Collective over the job.
  StepScores(ParallelModel& model,
             const SequenceSet& set,
             const std::vector<data::Batch>& micro_batches,
             const RowRoom& room,
             bool overlap_p2p);

  /// Of the scored tokens of a sequence of the set.
  std::span<const float> tokens(int64_t sequence) const { return table_.tokens(own_.at(sequence)); }
  double sum(int64_t sequence) const { return table_.sum(own_.at(sequence)); }

 private:
  std::map<int64_t, int64_t> own_;  // number in the table
  LogProbTable table_;
};

}  // namespace tapestry::post_training

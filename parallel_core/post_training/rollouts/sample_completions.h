// Completions that the policy writes, shared out over the ranks of a job.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel_core/comm/process_group.h"
#include "parallel_core/config/config.h"
#include "parallel_core/inference/generation.h"
#include "parallel_core/pipeline_parallel/parallel_model.h"

namespace tapestry::post_training {

struct SampledCompletion {
  std::vector<int32_t> ids;       ///< with the token that ended it
  std::vector<double> log_probs;  ///< of these (GenerationOptions::training_log_probs)
  bool truncated = false;         ///< no token ended it
  bool operator==(const SampledCompletion&) const = default;
};

/// A range of completions.
struct CompletionRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

/// Part `part` of `parts` of so many, as equal as can be.
CompletionRange part_of_completions(int64_t count, int64_t part, int64_t parts);

/// The ranks among which completions are shared out: those with other data or another part of the
/// sequences. Ranks of a tensor-parallel group and of a pipeline work on the same ones.
ProcessGroup& sharing_group();

/// Continues the requests with the model as it is now, in evaluation mode, and in no copy of it.
/// Every rank gives the same requests and gets all completions. Each rank samples a share; where
/// ranks with different data must touch the model together (z3, expert parallelism) all of them
/// sample everything. A text that fills max_context is truncated. Collective.
std::vector<SampledCompletion> sample_completions(ParallelModel& model,
                                                  const AllConfig& config,
                                                  std::span<const GenerationRequest> requests);

}  // namespace tapestry::post_training

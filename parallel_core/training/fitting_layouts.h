// Layouts that have memory enough for a run that has not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/estimates/memory_estimate.h"

namespace tapestry {

/// The ranks of a job and the memory that they share.
struct RankMemory {
  int64_t data_parallel_size = 1;
  int ranks = 1;          ///< of the job
  int ranks_on_host = 1;  ///< that share this machine
  int64_t available = 0;  ///< bytes of one of them
};

struct FittingLayout {
  int64_t ranks = 1;
  bool one_on_each_host = false;      ///< else all ranks share this machine
  std::vector<std::string> settings;  ///< "section.key=value", where they are not the run's
  int64_t bytes = 0;                  ///< of the rank that needs the most
  int64_t available = 0;              ///< bytes of one rank
};

/// The layouts of fewest ranks in which the run would fit, by estimate_memory: one rank; data
/// parallelism with each zero_level; pipelines; tensor parallelism; pairs of the last two. First on
/// this machine, whose memory its ranks share out, up to 16 of them; if there is none, with one
/// rank on each of up to 128 such machines; if there is none, the same with all layers recomputed.
/// All have the run's batch of a step. Empty if there is none at all.
std::vector<FittingLayout> fitting_layouts(const AllConfig& config, const RankMemory& memory);

/// ValueError as check_fits, with one rank's share of the machine and the layouts that would fit,
/// if the estimate exceeds what a rank has.
void check_memory(const AllConfig& config,
                  const MemoryEstimate& estimate,
                  const RankMemory& memory);

}  // namespace tapestry

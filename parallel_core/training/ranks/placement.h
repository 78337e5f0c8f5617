// Which cores a rank's threads have, on which memory they lie, and what is wrong with that.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "parallel_core/comm/process_group.h"

namespace tapestry {

/// Numbers of cores, ascending, by the number of the NUMA node that they lie on.
using NumaNodes = std::map<int, std::vector<int>>;

/// The system's NUMA nodes that have cores; empty where it does not tell. `folder` has the kernel's
/// form: nodeN/cpulist.
NumaNodes read_numa_nodes(const std::string& folder = "/sys/devices/system/node");

/// The numbers of a list as the kernel writes it ("0-3,8"), ascending; of a text that is none,
/// those up to there.
std::vector<int> parse_cpu_list(const std::string& text);
/// The other way: "0-3,8" of 0, 1, 2, 3, 8.
std::string cpu_list(const std::vector<int>& numbers);

/// What a rank may use, as mpirun, Slurm or taskset have bound it.
struct RankPlacement {
  std::string host;
  std::vector<int> cores;  ///< of its affinity mask, ascending
  std::vector<int>
      numa_nodes;   ///< that these lie on, ascending; empty where the system does not tell
  int threads = 1;  ///< that its loops run on

  /// That of the calling process.
  static RankPlacement own(const NumaNodes& nodes = read_numa_nodes());
  /// "host alpha, cores 0-7 of NUMA node 0, 8 threads".
  std::string describe() const;

  friend bool operator==(const RankPlacement&, const RankPlacement&) = default;
};

/// Those of all ranks, in their order, on every rank. Collective.
std::vector<RankPlacement> gather_placements(ProcessGroup& world, const RankPlacement& own);

/// A line for each rank: "rank 0: host alpha, cores 0-7 of NUMA node 0, 8 threads".
std::vector<std::string> placement_lines(const std::vector<RankPlacement>& ranks);

/// What costs time, with what helps; empty if all is well: threads of one rank on several NUMA
/// nodes (each reads memory of the others' nodes), and more threads on a host than its ranks have
/// cores.
std::vector<std::string> placement_warnings(const std::vector<RankPlacement>& ranks);

}  // namespace tapestry

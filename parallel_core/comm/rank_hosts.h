// On which hosts the ranks of a job run, for what is said about them.
#pragma once

#include <string>
#include <vector>

namespace tapestry {

/// Where nothing is known, or all ranks are on one host, a rank is named by its number alone.
class RankHosts {
 public:
  RankHosts() = default;
  /// The host of each rank.
  explicit RankHosts(std::vector<std::string> host_of_rank);

  bool several() const { return several_; }
  /// "" if nothing is known.
  const std::string& host_of(int rank) const;
  /// "rank 3", of a job on several hosts "rank 3 on node7".
  std::string name_of(int rank) const;

  /// The hosts all of whose ranks are among these, each with its ranks: "host node7 (ranks 4, 5, 6
  /// and 5 more), host node8 (rank 12)". "" if there is none, or the job is on one host.
  std::string whole_hosts(const std::vector<bool>& among) const;

 private:
  std::vector<std::string> host_of_rank_;
  bool several_ = false;
};

}  // namespace tapestry

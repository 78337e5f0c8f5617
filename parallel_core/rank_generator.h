// Which ranks form a group, from the order of the axes alone.
#pragma once

#include <string>
#include <vector>

namespace tapestry {

/// An axis along which a job is split, and its size.
struct ParallelAxis {
  std::string name;
  int size;
};

/// Ranks of a world that is split along axes, the first of which varies fastest:
/// rank = i_0 + n_0 (i_1 + n_1 (i_2 + ...)).
class RankGenerator {
 public:
  explicit RankGenerator(std::vector<ParallelAxis> axes);

  int world_size() const;
  /// The group "a-b" of a rank: all that agree with it on every axis but a and b, in ascending
  /// order. RuntimeError for a name that is no axis.
  std::vector<int> group_of(int rank, const std::string& axes) const;

 private:
  std::vector<ParallelAxis> axes_;
};

/// "tp-cp" gives "tp" and "cp".
std::vector<std::string> split_axes(const std::string& axes);

}  // namespace tapestry

#include "parallel_core/transformer/moe/group_sums.h"

#include <algorithm>
#include <bit>

#include "autograd/tensor/factory.h"

namespace tapestry {

GroupSums sum_over_group(ProcessGroup* group,
                         int64_t tokens,
                         const std::vector<int64_t>& counts,
                         const std::vector<double>& distances) {
  if (group == nullptr || group->size() == 1) {
    return {{tokens}, counts, distances};
  }
  // One message for all of it: distances travel as their bits.
  std::vector<int64_t> own = {tokens};
  own.insert(own.end(), counts.begin(), counts.end());
  for (const double distance : distances) {
    own.push_back(std::bit_cast<int64_t>(distance));
  }
  const int64_t width = std::ssize(own);
  const Tensor all = empty({group->size(), width}, kInt64);
  group->all_gather(all, tensor(own, {width}));

  GroupSums out = {{}, std::vector<int64_t>(counts.size(), 0), distances};
  const auto* theirs = all.data<int64_t>();
  for (int r = 0; r < group->size(); ++r) {
    out.tokens_of_ranks.push_back(*theirs++);
    for (int64_t& sum : out.sums) {
      sum += *theirs++;
    }
    for (double& minimum : out.minima) {
      minimum = std::min(minimum, std::bit_cast<double>(*theirs++));
    }
  }
  return out;
}

}  // namespace tapestry

#include "parallel_core/rank_generator.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry {

std::vector<std::string> split_axes(const std::string& axes) {
  std::vector<std::string> names;
  std::istringstream in(axes);
  std::string name;
  while (std::getline(in, name, '-')) {
    names.push_back(name);
  }
  return names;
}

RankGenerator::RankGenerator(std::vector<ParallelAxis> axes) : axes_(std::move(axes)) {}

int RankGenerator::world_size() const {
  int size = 1;
  for (const ParallelAxis& axis : axes_) {
    size *= axis.size;
  }
  return size;
}

std::vector<int> RankGenerator::group_of(int rank, const std::string& axes) const {
  const std::vector<std::string> free = split_axes(axes);
  for (const std::string& name : free) {
    check<RuntimeError>(std::any_of(axes_.begin(), axes_.end(),
                                    [&](const ParallelAxis& axis) { return axis.name == name; }),
                        "parallel state: '", name, "' is no axis of the order");
  }
  std::vector<int> ranks = {rank};
  int stride = 1;
  for (const ParallelAxis& axis : axes_) {
    if (std::find(free.begin(), free.end(), axis.name) != free.end()) {
      const int own = rank / stride % axis.size;
      std::vector<int> extended;
      for (int i = 0; i < axis.size; ++i) {
        for (const int member : ranks) {
          extended.push_back(member + (i - own) * stride);
        }
      }
      ranks = std::move(extended);
    }
    stride *= axis.size;
  }
  return ranks;  // slower axes are the outer loops, so they ascend
}

}  // namespace tapestry

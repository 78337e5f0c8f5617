#include "autograd/tensor/overlap.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

namespace tapestry {

bool elements_overlap(const Tensor& t) {
  if (t.is_contiguous()) {
    return false;
  }
  std::vector<std::pair<int64_t, int64_t>> axes;  // stride and size
  for (int64_t i = 0; i < t.dim(); ++i) {
    if (t.shape()[i] > 1) {
      axes.emplace_back(std::abs(t.strides()[i]), t.shape()[i]);
    }
  }
  std::sort(axes.begin(), axes.end());
  int64_t reach = 0;  // of all axes so far: the distance from their first element to their last
  return std::any_of(axes.begin(), axes.end(), [&](const auto& axis) {
    const bool overlaps = axis.first <= reach;
    reach += axis.first * (axis.second - 1);
    return overlaps;
  });
}

}  // namespace tapestry

#include "parallel_core/comm/sum_over.h"

#include <algorithm>
#include <cstdint>

#include "autograd/tensor/factory.h"

namespace tapestry {

void sum_over(ProcessGroup& group, std::span<double> values) {
  if (group.size() == 1) {
    return;
  }
  const Tensor sums =
      tensor(std::span<const double>(values), {static_cast<int64_t>(values.size())});
  group.all_reduce(sums);
  std::copy_n(sums.data<double>(), values.size(), values.begin());
}

double sum_over(ProcessGroup& group, double value) {
  sum_over(group, std::span(&value, 1));
  return value;
}

}  // namespace tapestry

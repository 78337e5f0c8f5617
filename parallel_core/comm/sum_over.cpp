#include "parallel_core/comm/sum_over.h"

#include <algorithm>
#include <array>
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

void sum_over(ProcessGroup& group, kernels::ExactSum& sum) {
  if (group.size() == 1) {
    return;
  }
  std::array<double, kernels::ExactSum::kWords> words;
  sum.write_words(words);
  sum_over(group, words);
  sum = {};
  sum.add_words(words);
}

double sum_over(ProcessGroup& group, double value) {
  sum_over(group, std::span(&value, 1));
  return value;
}

}  // namespace tapestry

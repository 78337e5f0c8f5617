#include "parallel_core/post_training/grpo/entropy_quantile.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "parallel_core/comm/sum_over.h"
#include "parallel_core/parallel_state.h"

namespace tapestry::post_training {

std::vector<double> gather_over_data_parallel(const std::vector<double>& own) {
  if (!model_parallel_is_initialized()) {
    return own;
  }
  ProcessGroup& group = get_data_parallel_group();
  const auto rank = static_cast<std::ptrdiff_t>(group.rank());
  std::vector<double> counts(static_cast<size_t>(group.size()));
  counts[static_cast<size_t>(rank)] = static_cast<double>(own.size());
  sum_over(group, counts);
  const double before = std::accumulate(counts.begin(), counts.begin() + rank, 0.0);
  const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  std::vector<double> all(static_cast<size_t>(total));
  std::copy(own.begin(), own.end(), all.begin() + static_cast<std::ptrdiff_t>(before));
  sum_over(group, all);
  return all;
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) {
    return 0;
  }
  std::sort(values.begin(), values.end());
  const double place = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(std::floor(place));
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

}  // namespace tapestry::post_training

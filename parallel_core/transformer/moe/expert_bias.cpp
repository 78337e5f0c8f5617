#include "parallel_core/transformer/moe/expert_bias.h"

#include <numeric>

#include "autograd/tensor/error.h"

namespace tapestry {

void update_expert_bias(const Tensor& bias, std::span<const int64_t> counts, double rate) {
  check<ValueError>(bias.dim() == 1 && bias.numel() == std::ssize(counts) && bias.is_contiguous(),
                    "update_expert_bias: there are ", counts.size(), " counts for a bias of ",
                    describe(bias));
  const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  auto* values = bias.data<float>();
  for (size_t e = 0; e < counts.size(); ++e) {
    const int64_t missing = all - std::ssize(counts) * counts[e];
    if (missing != 0) {
      values[e] += static_cast<float>(missing > 0 ? rate : -rate);
    }
  }
  bias.bump_version();
}

}  // namespace tapestry

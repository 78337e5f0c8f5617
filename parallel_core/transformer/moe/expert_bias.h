// Balance without a loss: a bias on the choice of experts.
#pragma once

#include <cstdint>
#include <span>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// bias_e += rate * sign(sum(counts) - E counts_e), in place: experts with more than their share of
/// the step's assignments become less likely. The sign is that of integers; bias [E] float32.
/// ValueError unless there is one count for each. Source: Wang et al. 2024, arXiv:2408.15664,
/// algorithm 1.
void update_expert_bias(const Tensor& bias, std::span<const int64_t> counts, double rate);

}  // namespace tapestry

// Random numbers with which ranks round sums of gradients in 16 bits.
#pragma once

#include <string>
#include <vector>

#include "autograd/kernels/random_rows.h"
#include "nn/parameter.h"

namespace tapestry {

/// Which random numbers round the sums that this rank makes of a parameter's gradient
/// (number_main_grad). Ranks with the same gradient of an element take the same numbers, so that
/// they stay equal; where each rank has a share of the gradient (TensorParallel::kPartial, heads
/// that several ranks hold, both ends of tied embeddings) it takes numbers of its own, so that
/// their errors do not add up.
std::vector<kernels::RandomRows> gradient_numbers(const std::string& name,
                                                  const nn::Parameter& parameter);

/// Of elements [first, first + count), once such shares have been added up: what rounds their sums
/// is the same on every rank that makes them.
std::vector<kernels::RandomRows> summed_gradient_numbers(const std::string& name,
                                                         const nn::Parameter& parameter,
                                                         int64_t first,
                                                         int64_t count);

}  // namespace tapestry

// Sums of a few numbers over the ranks of a group.
#pragma once

#include <span>

#include "autograd/kernels/exact/exact_scalar.h"
#include "parallel_core/comm/process_group.h"

namespace tapestry {

/// Replaces each value by its sum over the ranks of the group, in double precision and in the order
/// of the ranks: the same bits on all of them. Collective: all ranks give the same number of
/// values. In a group of one nothing is communicated.
void sum_over(ProcessGroup& group, std::span<double> values);

/// The exact sum of all ranks' terms, on each of them.
void sum_over(ProcessGroup& group, kernels::ExactSum& sum);

/// The sum of one value.
double sum_over(ProcessGroup& group, double value);

}  // namespace tapestry

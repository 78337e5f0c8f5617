// The entropy that separates the tokens a policy learns from.
#pragma once

#include <vector>

namespace tapestry::post_training {

/// The values of all data-parallel ranks, in the order of the ranks. Collective over that group.
std::vector<double> gather_over_data_parallel(const std::vector<double>& own);

/// The value below which the share `q`, from 0 to 1, of the values lies, linear between the two
/// nearest (torch.quantile); 0 of no values.
double quantile(std::vector<double> values, double q);

}  // namespace tapestry::post_training

// The number with which a model of measurements comes nearest to them.
#pragma once

#include <functional>
#include <optional>
#include <vector>

namespace tapestry {

/// Differences between what a value makes and what was measured, in units of what they may be.
using Residuals = std::function<std::vector<double>(double value)>;

/// The value above 0 with the least sum of squares, from `start` on: Gauss and Newton's steps of
/// its logarithm, with the slope between the last two. Nothing where residuals are not finite, or
/// do not depend on it. At most `evaluations` calls.
std::optional<double> fit_value(const Residuals& residuals, double start, int evaluations = 14);

/// A sum in which what is far off counts little more than what is near.
double distance_of_most(const std::vector<double>& residuals);
/// The value with the least distance_of_most, for sums that have kinks: by golden sections between
/// a third of `start` and three times it.
std::optional<double> fit_by_sections(const Residuals& residuals, double start);

}  // namespace tapestry

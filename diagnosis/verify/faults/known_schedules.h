// Schedules of the learning rate that programs are known to follow in place of the one that was
// meant.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"

namespace tapestry {

/// Learning rate of a step of the run, from 1.
using RateOfStep = std::function<double(int64_t step)>;
/// By a configuration, in one process.
RateOfStep rate_of_step(const AllConfig& config);

struct KnownSchedule {
  std::string text;  ///< "as if the warm-up took 6 steps"
  RateOfStep rate;
};

/// Those whose first rates are near the given ones, the first of which is that of step 1; simple
/// ones before such that differ in two things from what was meant.
std::vector<KnownSchedule> schedules_near(const AllConfig& meant, const std::vector<double>& rates);

}  // namespace tapestry

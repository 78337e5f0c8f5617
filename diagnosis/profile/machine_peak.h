// What a rank's threads reach at best, to hold ops against.
#pragma once

#include "autograd/tensor/dtype.h"

namespace tapestry::profile {

struct MachinePeak {
  double flops = 0;  ///< a second, in products of 512 x 512 or 1024 x 1024 matrices
  double bytes = 0;  ///< a second, read and written, by a copy that no cache holds
};

/// Measures for about an eighth of a second, in memory of its own: the best of several runs.
MachinePeak measure_peak(DType dtype);

}  // namespace tapestry::profile

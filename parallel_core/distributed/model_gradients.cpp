#include "parallel_core/distributed/model_gradients.h"

#include <cmath>

#include "autograd/kernels/exact/exact_sums.h"
#include "autograd/tensor/error.h"

namespace tapestry {

void check_exact_sums(const ModelGradients& gradients, int64_t step) {
  const ModelGradients::LargestSum& largest = gradients.largest_sum();
  const bool fits = !std::isfinite(largest.units) || largest.units <= kernels::kExactLimit;
  check<RuntimeError>(fits, "exact mode: in step ", step, " the gradient of '", largest.name,
                      "' has an element of magnitude ",
                      std::ldexp(largest.units, kernels::kExactUnitExponent),
                      ", loss scale included; its sum is exact up to ",
                      std::ldexp(kernels::kExactLimit, kernels::kExactUnitExponent),
                      ". Lower the loss scale, or switch training_config.exact off");
}

}  // namespace tapestry

// Losses whose gradients are known with them.
#pragma once

#include <vector>

#include "autograd/tensor/tensor.h"

namespace tapestry::post_training {

/// The scalar `value`, a function of x, whose gradient by x's elements, in row-major order, is
/// `gradient`. For losses that are computed in double, from all of x at once, where ops on x would
/// round at each step. Takes x's dtype. ValueError unless there is a number for each element.
Tensor known_loss(const Tensor& x, double value, const std::vector<float>& gradient);

}  // namespace tapestry::post_training

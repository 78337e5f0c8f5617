// Sums and other reductions over axes.
//
// Axes count from the end when negative; an empty list means all of them. keepdim leaves the
// reduced axes with size 1. Sums of float32 are accurate to a few units in the last place whatever
// their length, and the same for any number of threads.
#pragma once

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// Integers and bool are summed in int64. An empty sum is 0.
Tensor sum(const Tensor& x, const Shape& axes = {}, bool keepdim = false);
/// Floating only (TypeError). The mean of nothing is NaN.
Tensor mean(const Tensor& x, const Shape& axes = {}, bool keepdim = false);

/// Sums x over the axes that were broadcast from `shape`: the gradient of an expansion. x itself if
/// the shapes are equal.
Tensor sum_to(const Tensor& x, const Shape& shape);

}  // namespace tapestry

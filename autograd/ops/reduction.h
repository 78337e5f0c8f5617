// Sums and other reductions over axes, and cumulative sums.
//
// Axes count from the end when negative; an empty list means all of them. keepdim leaves the
// reduced axes with size 1. Sums of float32 are accurate to a few units in the last place whatever
// their length, and the same for any number of threads. IndexError if there is no such axis,
// ValueError if one is named twice.
#pragma once

#include <optional>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// Values, and where along the axis they were found (int64).
struct ValuesAndIndices {
  Tensor values;
  Tensor indices;
};

/// Integers and bool are summed in int64. An empty sum is 0.
Tensor sum(const Tensor& x, const Shape& axes = {}, bool keepdim = false);
/// Floating only (TypeError). The mean of nothing is NaN. float16 and bfloat16 are rounded once, at
/// the end; so are those of var and std.
Tensor mean(const Tensor& x, const Shape& axes = {}, bool keepdim = false);
/// Integers and bool are multiplied in int64. An empty product is 1. The gradient is right where
/// factors are zero, too; there, a gradient of the gradient takes memory quadratic in the number of
/// factors.
Tensor prod(const Tensor& x, const Shape& axes = {}, bool keepdim = false);

/// sum((x - mean)^2) / (n - correction), in two passes, so that a mean far from zero does no harm;
/// a divisor below 0 counts as 0, so the variance of one value with correction 1 is NaN. Floating
/// only (TypeError).
Tensor var(const Tensor& x, const Shape& axes = {}, double correction = 1, bool keepdim = false);
/// sqrt(var). The gradient of a zero deviation is 0.
Tensor std(const Tensor& x, const Shape& axes = {}, double correction = 1, bool keepdim = false);

/// The largest or smallest element of all, or along one axis with its index. A NaN wins. Among
/// equals the first is chosen, and the gradient goes to the chosen element alone. ValueError if
/// there is nothing to choose from.
Tensor max(const Tensor& x);
Tensor min(const Tensor& x);
ValuesAndIndices max(const Tensor& x, int64_t axis, bool keepdim = false);
ValuesAndIndices min(const Tensor& x, int64_t axis, bool keepdim = false);
/// Over any axes, without indices. Equals share the gradient. ValueError as above.
Tensor amax(const Tensor& x, const Shape& axes = {}, bool keepdim = false);
Tensor amin(const Tensor& x, const Shape& axes = {}, bool keepdim = false);

/// Index of the largest or smallest element, int64; without an axis in the flattened tensor. Ties,
/// NaN and errors as for max and min. No gradient.
Tensor argmax(const Tensor& x, std::optional<int64_t> axis = std::nullopt, bool keepdim = false);
Tensor argmin(const Tensor& x, std::optional<int64_t> axis = std::nullopt, bool keepdim = false);

/// Whether some or every element differs from 0; bool. NaN counts as true. Of nothing, any is false
/// and all is true.
Tensor any(const Tensor& x, const Shape& axes = {}, bool keepdim = false);
Tensor all(const Tensor& x, const Shape& axes = {}, bool keepdim = false);

/// y[i] = x[0] + ... + x[i] along one axis. Integers and bool are summed in int64.
Tensor cumsum(const Tensor& x, int64_t axis);

/// Sums x over the axes that were broadcast from `shape`: the gradient of an expansion. x itself if
/// the shapes are equal.
Tensor sum_to(const Tensor& x, const Shape& shape);

}  // namespace tapestry

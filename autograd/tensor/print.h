// Tensors as text.
#pragma once

#include <iosfwd>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// Nested brackets with aligned columns; rows of numbers are broken to lines of at most 80
/// characters:
///
///   tensor([[ 1.0000, -0.5000],
///           [ 0.2500,  3.0000]])
///
/// If all are whole, numbers are written as "1.", else with 4 decimals; all of them in scientific
/// notation if the largest magnitude is above 1e8 or, where some have a fraction, the smallest is
/// below 1e-4 or less than a thousandth of the largest. More than 1000 elements are summarised: the
/// first and last three of each axis, "..." between. Then follow the shape where the brackets do
/// not tell it, the dtype unless it is float32, and requires_grad. An undefined tensor is
/// "undefined".
std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

}  // namespace tapestry

// Functions that keep digits, integer division, comparison with a tolerance. Broadcasting, dtypes
// and errors as in elementwise.h.
#pragma once

#include "autograd/tensor/scalar.h"
#include "autograd/tensor/tensor.h"

namespace tapestry {

/// log(1 + x), exact to rounding for small x. Integers become float32.
Tensor log1p(const Tensor& x);
/// exp(x) - 1, exact to rounding for small x. Integers become float32.
Tensor expm1(const Tensor& x);

/// floor(a / b), as Python's //. No gradient. RuntimeError if an integer is divided by 0; TypeError
/// for bool.
Tensor floor_divide(const Tensor& a, const Tensor& b);
Tensor floor_divide(const Tensor& a, Scalar b);
/// a - b floor(a / b), with the sign of b, as Python's %. db = -dy floor(a / b). Errors as above.
Tensor remainder(const Tensor& a, const Tensor& b);
Tensor remainder(const Tensor& a, Scalar b);

/// Whether |a - b| <= absolute + relative |b| for all elements, broadcast; equal infinities are
/// close, NaN is close to NaN only with equal_nan. Compared in the dtype where a and b meet,
/// float64 for integers. ValueError if shapes do not broadcast.
bool allclose(const Tensor& a,
              const Tensor& b,
              double relative = 1e-5,
              double absolute = 1e-8,
              bool equal_nan = false);

}  // namespace tapestry

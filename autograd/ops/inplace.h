// Changes in place. Each returns a handle of the tensor that it changed.
//
// The result must fit: broadcasting may not change x's shape (ValueError), and a result of a higher
// category (bool < integer < floating) does not fit x's dtype (TypeError): mul_(integers, 2.0) is
// refused as mul_(integers, 0.5) is; within a category it is converted. Every call adds one to the
// version of the storage, so that a backward that needs the old values throws instead of using the
// new ones. x may have any strides, but no two of its elements may share memory (RuntimeError; an
// expanded tensor does). Operands may overlap x.
//
// Where nothing is recorded, the kernel works on x's memory. While recording,
// - a leaf that requires a gradient cannot be changed (RuntimeError; use NoGradGuard);
// - nor can a view that was made under a NoGradGuard of a tensor that is part of a graph: the graph
//   would not learn of the change (RuntimeError);
// - nor, where the change is recorded, one of several views that split() or chunk() made
//   (RuntimeError);
// - if x has a history or an operand requires a gradient, x becomes the result of the recorded op
//   of the same meaning, with the old x as its input. This is only possible if no other tensor
//   shares x's storage (RuntimeError): views and detached aliases of x, values of x that an earlier
//   op keeps for its backward. Use the op that makes a new tensor there. As in PyTorch, backward
//   refuses a tensor that was multiplied or divided by itself in place, and one that was changed
//   again after exp_, sqrt_, rsqrt_, reciprocal_, tanh_ or sigmoid_, whose derivatives go by the
//   result.
#pragma once

#include <limits>

#include "autograd/tensor/scalar.h"
#include "autograd/tensor/tensor.h"

namespace tapestry {

Tensor add_(const Tensor& x, const Tensor& other);
Tensor add_(const Tensor& x, Scalar other);
Tensor sub_(const Tensor& x, const Tensor& other);
Tensor sub_(const Tensor& x, Scalar other);
Tensor mul_(const Tensor& x, const Tensor& other);
Tensor mul_(const Tensor& x, Scalar other);
/// True division: x must be floating (TypeError).
Tensor div_(const Tensor& x, const Tensor& other);
Tensor div_(const Tensor& x, Scalar other);
Tensor pow_(const Tensor& x, Scalar exponent);
Tensor neg_(const Tensor& x);
Tensor abs_(const Tensor& x);
Tensor floor_(const Tensor& x);
Tensor ceil_(const Tensor& x);
Tensor round_(const Tensor& x);
Tensor square_(const Tensor& x);
/// Those below need a floating x (TypeError).
Tensor exp_(const Tensor& x);
Tensor log_(const Tensor& x);
Tensor sqrt_(const Tensor& x);
Tensor rsqrt_(const Tensor& x);
Tensor reciprocal_(const Tensor& x);
Tensor tanh_(const Tensor& x);
Tensor sigmoid_(const Tensor& x);
/// ValueError if low > high.
Tensor clamp_(const Tensor& x, Scalar low, Scalar high = std::numeric_limits<double>::infinity());
/// x = value wherever the bool mask, which broadcasts to x, is true.
Tensor masked_fill_(const Tensor& x, const Tensor& mask, Scalar value);

/// x = source, broadcast to x and converted from any dtype.
Tensor copy_(const Tensor& x, const Tensor& source);
Tensor fill_(const Tensor& x, Scalar value);
Tensor zero_(const Tensor& x);

// The same as operators: the tensor behind the handle changes, so a handle may be const.
inline const Tensor& operator+=(const Tensor& x, const Tensor& other) { return add_(x, other), x; }
inline const Tensor& operator+=(const Tensor& x, Scalar other) { return add_(x, other), x; }
inline const Tensor& operator-=(const Tensor& x, const Tensor& other) { return sub_(x, other), x; }
inline const Tensor& operator-=(const Tensor& x, Scalar other) { return sub_(x, other), x; }
inline const Tensor& operator*=(const Tensor& x, const Tensor& other) { return mul_(x, other), x; }
inline const Tensor& operator*=(const Tensor& x, Scalar other) { return mul_(x, other), x; }
inline const Tensor& operator/=(const Tensor& x, const Tensor& other) { return div_(x, other), x; }
inline const Tensor& operator/=(const Tensor& x, Scalar other) { return div_(x, other), x; }

}  // namespace tapestry

// Element-wise arithmetic, functions, comparisons and selection.
//
// Operands broadcast under NumPy's rules and meet in result_dtype(a, b); gradients are summed back
// to each operand's own shape and dtype. A C++ number takes the tensor's dtype, except that one of
// a floating type, whole or not, turns integers into float32 (see Scalar). Integer operands of
// functions that need a real number (exp, division, ...) become float32 first. ValueError if shapes
// do not broadcast, TypeError if the dtype has no such operation.
#pragma once

#include <limits>

#include "autograd/tensor/scalar.h"
#include "autograd/tensor/tensor.h"

namespace tapestry {

// -- arithmetic -------------------------------------------------------------------------------
Tensor add(const Tensor& a, const Tensor& b);
Tensor add(const Tensor& a, Scalar b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, Scalar b);
Tensor sub(Scalar a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, Scalar b);
/// True division; two integers give float32.
Tensor div(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, Scalar b);
Tensor div(Scalar a, const Tensor& b);
/// a^b. The derivative with respect to a is b a^(b-1), and 0 where b is 0; with respect to b it is
/// a^b log a, and 0 where a is 0 and b >= 0.
Tensor pow(const Tensor& a, const Tensor& b);
Tensor pow(const Tensor& a, Scalar exponent);
Tensor pow(Scalar a, const Tensor& exponent);
/// Where both are equal, each gets half the gradient; where one is NaN, each gets all of it.
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator+(const Tensor& a, Scalar b) { return add(a, b); }
inline Tensor operator+(Scalar a, const Tensor& b) { return add(b, a); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator-(const Tensor& a, Scalar b) { return sub(a, b); }
inline Tensor operator-(Scalar a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator*(const Tensor& a, Scalar b) { return mul(a, b); }
inline Tensor operator*(Scalar a, const Tensor& b) { return mul(b, a); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator/(const Tensor& a, Scalar b) { return div(a, b); }
inline Tensor operator/(Scalar a, const Tensor& b) { return div(a, b); }

// -- functions of one tensor --------------------------------------------------------------------
Tensor neg(const Tensor& x);
inline Tensor operator-(const Tensor& x) { return neg(x); }
/// The derivative at 0 is 0.
Tensor abs(const Tensor& x);
/// -1, 0 or 1. Its gradient is zero, like those of floor, ceil and round.
Tensor sign(const Tensor& x);
Tensor floor(const Tensor& x);
Tensor ceil(const Tensor& x);
/// Half to even.
Tensor round(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
/// 1 / sqrt(x)
Tensor rsqrt(const Tensor& x);
Tensor reciprocal(const Tensor& x);
Tensor square(const Tensor& x);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor erf(const Tensor& x);
/// Limits x to [low, high]; the gradient passes where low <= x <= high. NaN stays NaN. A
/// limit of -inf or inf is none, and does not count for the dtype. ValueError if low > high.
Tensor clamp(const Tensor& x, Scalar low, Scalar high = std::numeric_limits<double>::infinity());

// -- comparisons and logic: results are bool and have no gradient --------------------------------
Tensor eq(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Tensor& b);
Tensor eq(const Tensor& a, Scalar b);
Tensor ne(const Tensor& a, Scalar b);
Tensor lt(const Tensor& a, Scalar b);
Tensor le(const Tensor& a, Scalar b);
Tensor gt(const Tensor& a, Scalar b);
Tensor ge(const Tensor& a, Scalar b);
/// Any dtype counts as true where it is not zero.
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
Tensor logical_xor(const Tensor& a, const Tensor& b);
Tensor logical_not(const Tensor& x);
Tensor isfinite(const Tensor& x);
Tensor isnan(const Tensor& x);

// -- selection ------------------------------------------------------------------------------------
/// condition ? a : b; the condition is bool. A masked-out entry gets gradient zero, also where its
/// value is infinite.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
/// x with `value` wherever the bool mask, which broadcasts to x, is true.
Tensor masked_fill(const Tensor& x, const Tensor& mask, Scalar value);

}  // namespace tapestry

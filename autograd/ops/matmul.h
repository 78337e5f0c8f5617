// Matrix products.
//
// Operands have one dtype, which the result has too: floating or integer (which wraps)
// (TypeError). Sums of float16 and bfloat16 are carried in float32 and rounded once. Operands whose
// last two axes have unit stride in either of them, transposed views above all, are used where they
// lie; any others are copied.
#pragma once

#include <functional>
#include <string_view>

#include "autograd/ops/exact_runs.h"
#include "autograd/tensor/tensor.h"

namespace tapestry {

/// y[.., i, j] = sum_k a[.., i, k] b[.., k, j]. Axes before the last two broadcast. A vector a
/// stands for a row, a vector b for a column, which then disappears from the result. ValueError if
/// inner sizes differ, batch axes do not broadcast, or an operand is a scalar.
Tensor matmul(const Tensor& a, const Tensor& b);
/// The same for [batch, m, k] and [batch, k, n] only (ValueError).
Tensor bmm(const Tensor& a, const Tensor& b);
/// Sum of the products of two vectors of one length (ValueError).
Tensor dot(const Tensor& a, const Tensor& b);
/// y[i, j] = a[i] b[j] of two vectors (ValueError).
Tensor outer(const Tensor& a, const Tensor& b);

/// y = x weight^T + bias: x [.., in], weight [out, in], bias [out] or undefined, y [.., out]. With
/// a weight [in] of one axis, whose bias has none, y is [..]. Saves x and weight, each where the
/// other wants a gradient: dx = dy weight, dweight = dy^T x, dbias = sum dy. ValueError if shapes
/// do not fit.
///
/// Mixed precision: x may be bfloat16 or float16 where weight and bias, or one of them, are
/// float32. The product is then that of x and the weight rounded to x's dtype, y has x's dtype, and
/// the gradients of what is float32 are float32 sums. A caller that uses one weight often keeps
/// `rounded`, the rounded weight, and passes it (TypeError, ValueError if it is not that by dtype
/// and shape).
///
/// `recompute_x`, if given, is called in backward and gives x again, which is then not saved: for
/// an x that is large and cheap to make from what other ops save anyway. It runs in the grad mode
/// of the backward pass; ValueError there if what it gives has another shape or dtype.
///
/// In exact mode (kernels/machine/exact.h) `sums` says which sums ranks may divide; dweight and
/// dbias are added to exact sums, and the bias is added when the tree is complete.
Tensor linear(const Tensor& x,
              const Tensor& weight,
              const Tensor& bias = {},
              const Tensor& rounded = {},
              std::function<Tensor()> recompute_x = nullptr,
              const LinearSums& sums = {});

/// Einstein's summation: "bij,bjk->bik". One letter names one axis; letters that are not in the
/// result are summed over; a letter twice in one operand takes the diagonal. Without "->" the
/// result has the letters that occur once, in alphabetical order. Operands are contracted from left
/// to right, each step a batched matrix product.
///
/// ValueError, quoting the equation: operands, axes or sizes that disagree with it, an unknown or
/// repeated letter in the result, anything but letters ("..." is not supported).
Tensor einsum(std::string_view equation, const TensorList& operands);

}  // namespace tapestry

// Softmax and its relatives.
//
// Floating tensors of any strides (TypeError), result contiguous, in x's dtype; sums in float32
// for 16-bit inputs. The largest element is subtracted first, so large arguments do not overflow;
// an entry of -inf counts as absent. Axes count from the end when negative (IndexError).
#pragma once

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// exp(x) / sum(exp(x)) along one axis. A row of nothing but -inf is NaN. Saves the output.
Tensor softmax(const Tensor& x, int64_t axis);
/// log(softmax(x)) along one axis, computed as x - logsumexp(x). Saves the output.
Tensor log_softmax(const Tensor& x, int64_t axis);
/// log(sum(exp(x))) over the given axes (empty: all). -inf over nothing and over nothing but -inf,
/// where the gradient is 0. Saves x and the output.
Tensor logsumexp(const Tensor& x, const Shape& axes, bool keepdim = false);

/// The same functions in elementary ops.
Tensor composed_softmax(const Tensor& x, int64_t axis);
Tensor composed_log_softmax(const Tensor& x, int64_t axis);
Tensor composed_logsumexp(const Tensor& x, const Shape& axes, bool keepdim = false);

}  // namespace tapestry

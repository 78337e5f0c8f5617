// Arithmetic on gradients below the ops: unrecorded, into memory that is there.
#pragma once

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// Sum of two gradients, recorded if grad mode is on. ValueError if their shapes, TypeError if
/// their dtypes differ.
Tensor accumulate(const Tensor& a, const Tensor& b);

/// The gradient in dense memory that nobody else sees: itself where that is so already, else a
/// copy, recorded if grad mode is on.
Tensor owned_gradient(Tensor gradient);

namespace detail {

/// out = a + b, all of one shape and dtype; out may be a or b. Returns out.
Tensor sum_into(const Tensor& a, const Tensor& b, const Tensor& out);

/// out = x in another floating dtype.
void convert_into(const Tensor& x, const Tensor& out);

/// The same values in dense memory of their own, unrecorded.
Tensor contiguous_copy(const Tensor& source);

/// True if this handle is the only way to a tensor's memory, and that is dense.
inline bool is_sole_handle(const Tensor& t) {
  return t.impl()->use_count() == 1 && t.storage()->use_count() == 1 &&
         t.storage()->owns_memory() && t.is_contiguous();
}
/// The same, and no graph depends on the values: they may be overwritten.
inline bool is_sole_owner(const Tensor& t) { return is_sole_handle(t) && !t.requires_grad(); }

}  // namespace detail

}  // namespace tapestry

// Arithmetic on gradients below the ops: unrecorded, into memory that is there.
#pragma once

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// Sum of two gradients of one shape and dtype, recorded if grad mode is on.
Tensor accumulate(const Tensor& a, const Tensor& b);

namespace detail {

/// out = a + b, all of one shape and dtype; out may be a or b. Returns out.
Tensor sum_into(const Tensor& a, const Tensor& b, const Tensor& out);

/// out = x in another floating dtype.
void convert_into(const Tensor& x, const Tensor& out);

/// The same values in dense memory of their own, unrecorded.
Tensor contiguous_copy(const Tensor& source);

/// True if nobody else can see this tensor's memory: it may be overwritten.
inline bool is_sole_owner(const Tensor& t) {
  return t.impl()->use_count() == 1 && t.storage()->use_count() == 1 && t.is_contiguous() &&
         !t.requires_grad();
}

}  // namespace detail

}  // namespace tapestry

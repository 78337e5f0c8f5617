// Elements in row-major order, without the tape and its observers.
#pragma once

#include "autograd/tensor/tensor.h"

namespace tapestry::dump {

/// x itself (a handle) if it is contiguous, else a contiguous copy that no op made: dumps are
/// written while ops are watched.
Tensor dense(const Tensor& x);

/// A contiguous copy, always in memory of its own, of the same dtype or of a `wider` one.
Tensor dense_copy(const Tensor& x, DType wider);

}  // namespace tapestry::dump

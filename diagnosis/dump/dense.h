// Elements in row-major order, without the tape and its observers.
#pragma once

#include "autograd/tensor/tensor.h"

namespace tapestry::dump {

/// x itself (a handle) if it is contiguous, else a contiguous copy that no op made: dumps are
/// written while ops are watched.
Tensor dense(const Tensor& x);

/// A contiguous copy, always in memory of its own, of the same dtype or of a `wider` one.
Tensor dense_copy(const Tensor& x, DType wider);

/// Contiguous and of a type that holds every value of x: float32 for floating types up to that,
/// bool and integers of 8 bits, else float64. x itself where it is that already.
Tensor wide(const Tensor& x);

}  // namespace tapestry::dump

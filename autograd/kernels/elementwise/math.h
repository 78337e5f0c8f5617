// Rows, as in elementwise.h, of functions that are rarely the time of a program: one loop over
// libm's functions for all processors.
#pragma once

#include "autograd/kernels/elementwise/elementwise.h"

namespace tapestry::kernels {

/// log(1 + x) and exp(x) - 1 without loss of digits near 0. Floating dtypes; float16 and bfloat16
/// in float32.
UnaryRow log1p_row(DType dtype);
UnaryRow expm1_row(DType dtype);

/// floor(a / b) and a - b floor(a / b), which has the sign of b; as Python's // and %. Floating
/// dtypes and integers, whose b must not be 0 (the least integer over -1 wraps).
BinaryRow floor_divide_row(DType dtype);
BinaryRow remainder_row(DType dtype);

}  // namespace tapestry::kernels

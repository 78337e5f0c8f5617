// Element-wise rows by what they do, for elementwise.cpp, which chooses between these and those of
// the floating dtypes. nullptr where the operation is not of the kind or has no meaning for the
// dtype.
#pragma once

#include "autograd/kernels/elementwise/elementwise.h"
#include "autograd/kernels/machine/cpu.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_UP_TO_AVX2(
    /// Arithmetic of integers, and of bool where it has any.
    UnaryRow integer_unary_row(UnaryOp op, DType dtype);
    BinaryRow integer_binary_row(BinaryOp op, DType dtype);
    ScalarRow integer_scalar_row(ScalarOp op, DType dtype);

    /// What gives bool: comparisons, logicals, predicates, of any dtype.
    UnaryRow predicate_row(UnaryOp op, DType dtype);
    BinaryRow relation_row(BinaryOp op, DType dtype);
    ScalarRow scalar_relation_row(ScalarOp op, DType dtype);

    /// Conversions between different dtypes that are not both floating.
    UnaryRow convert_row(DType from, DType to);
    /// Copies elements of that many bytes.
    UnaryRow copy_row(int64_t item_size);
    void fill_row(DType dtype, int64_t n, double value, void* y, int64_t sy))

/// Floating functions whose loops call libm for each element, the same at every level: sine, cosine
/// and powers, and in float64 whatever is no arithmetic.
UnaryRow libm_unary_row(UnaryOp op, DType dtype);
BinaryRow libm_binary_row(BinaryOp op, DType dtype);
ScalarRow libm_scalar_row(ScalarOp op, DType dtype);

}  // namespace tapestry::kernels

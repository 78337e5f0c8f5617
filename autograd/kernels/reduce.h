// Reductions and scans over one axis, and whole-array sums and updates.
//
// The input is contiguous and viewed as [outer, n, inner]; the axis of n elements goes. Floating
// sums and products are carried in float64 (float64 ones in blocks) and rounded once. The order of
// summation depends on the sizes only, so results do not depend on the number of threads.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

enum class ReduceOp { kSum, kProd, kMax, kMin, kSumSquares };

/// y[outer, inner] of x's dtype. A NaN makes max and min NaN. n == 0: sums 0, product 1; max and
/// min need n > 0 (asserted). Integers wrap. Bool: sum and max are `or`, product and min `and`.
/// int8 and uint8 have max and min only (asserted): sums are wanted in int64.
void reduce(
    ReduceOp op, DType dtype, int64_t outer, int64_t n, int64_t inner, const void* x, void* y);

/// y = any (or all) of x != 0 along the axis; NaN counts as true. n == 0: any false, all true.
void reduce_bool(
    bool any, DType dtype, int64_t outer, int64_t n, int64_t inner, const void* x, bool* y);

/// The largest (max) or smallest element along the axis and its index, the first among equals; the
/// first NaN wins over all. Either output may be null. n > 0 (asserted).
void arg_reduce(bool max,
                DType dtype,
                int64_t outer,
                int64_t n,
                int64_t inner,
                const void* x,
                void* values,
                int64_t* indices);

/// y[o,i,j] = sum of x[o,0..i,j], or of x[o,i..n-1,j] if reverse; y may be x. Carried in float64
/// for floating dtypes. Not for bool (asserted).
void cumsum(
    DType dtype, int64_t outer, int64_t n, int64_t inner, const void* x, void* y, bool reverse);

/// Sum of squares in float64; the squares of float32 values neither overflow nor vanish. Any dtype.
double sum_of_squares(DType dtype, int64_t n, const void* x);

/// No infinity and no NaN among the elements; true for integers and bool.
bool all_finite(DType dtype, int64_t n, const void* x);

/// x *= s. Floating dtypes, s rounded to float32 for all but float64.
void scale_inplace(DType dtype, int64_t n, double s, void* x);

/// y += a x. Floating dtypes, a rounded to float32 for all but float64; rounded once for 16 bits.
void axpy(DType dtype, int64_t n, double a, const void* x, void* y);

}  // namespace tapestry::kernels

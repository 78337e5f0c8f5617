// Sums that do not depend on the order of their terms: each term, a float32, is rounded to a
// multiple of 2^-44, and multiples of one unit add in float64 without rounding as long as the sum
// is below 2^53 of them (512). Counted in units, all of them are whole numbers.
//
// A gradient's elements are of the order of 1e-9 to 1: one term errs by at most 2.8e-14, which is
// less than float32 sums err wherever they exceed 5e-7. Source of the idea: Demmel and Nguyen 2015,
// "Parallel Reproducible Summation", with one bin that is known before.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

inline constexpr int kExactUnitExponent = -44;
/// Above this many units a sum may no longer be exact.
inline constexpr double kExactLimit = 4503599627370496.0;  // 2^52: 256

/// sums[i] += x[i] in units, n elements of any floating dtype, on the team. NaN and infinities
/// travel as such.
void add_to_exact(DType dtype, int64_t n, const void* x, double* sums);

/// sums[j] += each of x[.., j] in units, [rows, n] with rows ld apart, each element a term. On the
/// team.
void add_columns_to_exact(
    DType dtype, int64_t rows, int64_t n, const void* x, int64_t ld, double* sums);

/// y[i] = sums[i] as a number, rounded to float32 once; y may be the memory of sums, the numbers
/// then have its first half. Returns the largest magnitude in units, NaN where a sum is not finite.
/// On the team.
double exact_to_float32(int64_t n, const double* sums, float* y);

// For loops of other kernels: a row of terms, on the calling thread.
TAPESTRY_DECLARE_PER_ISA(void add_row_to_exact(int64_t n, const float* x, double* sums);
                         double exact_row_to_float32(int64_t n, const double* sums, float* y))

}  // namespace tapestry::kernels

// Sums of squares that do not depend on the order or the division of their terms: each square is
// rounded to a multiple of 2^-85 of what the largest magnitude allows, and such multiples are added
// in integers. Two passes over memory: the largest magnitude of all there is, then the squares.
//
//   largest = max over all parts of largest_magnitude(part)
//   squares = sum over all parts, element by element, of exact_squares(part, largest)
//   norm = exact_norm(squares, largest)
//
// Whichever parts there are, the norm has the same bits at every CPU level. For 2^40 elements it
// errs by 2^-45 of its value at most, and half a unit in the last place.
#pragma once

#include <array>
#include <cstdint>

#include "autograd/kernels/machine/cpu.h"

namespace tapestry::kernels {

/// Digits of 32 bits of a sum, the lowest first. Those of up to 2^20 parts may be added or
/// subtracted element by element, in any order.
using ExactSquares = std::array<double, 4>;

/// NaN where there is one; 0 without elements. On the team.
float largest_magnitude(int64_t n, const float* x);

/// Of elements whose magnitude is at most `largest`; zeros where that is 0 or not finite. On the
/// team.
ExactSquares exact_squares(int64_t n, const float* x, double largest);

/// The square root of such a sum of at most 2^40 elements; `largest` where that is not finite.
double exact_norm(const ExactSquares& squares, double largest);

/// Of a block of exact_squares, at most this many elements whose squares are at most `bound`, a
/// power of two: sums of the squares in multiples of 2^-42 bound, and of what these lack in
/// multiples of 2^-85 bound.
inline constexpr int64_t kSquareBlock = 1024;
struct SquareBins {
  double coarse;
  double fine;
};
TAPESTRY_DECLARE_PER_ISA(int32_t largest_bits(int64_t n, const float* x);
                         SquareBins square_bins(int64_t n, const float* x, double bound))

}  // namespace tapestry::kernels

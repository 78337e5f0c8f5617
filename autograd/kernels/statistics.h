// What describes the elements of an array: extremes, sums, counts by sign and kind.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

/// Groups of numbers that are made together.
enum ElementGroups : uint32_t {
  kExtremesAndSums = 1,  ///< max, min, sum, sum_squares
  kElementCounts = 2,    ///< negative ... positive_infinity
  kMantissaBits = 4,     ///< bits
};

struct ElementStatistics {
  /// Of the finite elements; -infinity and +infinity if there are none.
  double max = -__builtin_inf();
  double min = __builtin_inf();
  double sum = 0;          ///< of the finite elements
  double sum_squares = 0;  ///< of the finite elements
  int64_t negative = 0;    ///< below 0, infinity included
  int64_t positive = 0;
  int64_t zero = 0;
  int64_t nan = 0;
  int64_t negative_infinity = 0;
  int64_t positive_infinity = 0;
  /// Most binary digits, without trailing zeros, that a finite element needs.
  int64_t bits = 0;
};

/// The chosen groups of n contiguous elements of any dtype in one pass; the rest is left as above.
/// Sums are carried in float64 in fixed blocks, so they do not depend on the number of threads.
ElementStatistics element_statistics(DType dtype, int64_t n, const void* x, uint32_t groups);

}  // namespace tapestry::kernels

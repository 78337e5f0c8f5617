// Which random numbers the elements of an array take.
#pragma once

#include <cstdint>
#include <limits>

namespace tapestry::kernels {

/// The numbers of the elements from `begin` on, up to the `begin` of the next of a list whose first
/// one begins at 0. They lie in rows of `width`: elements of a row take consecutive numbers of the
/// stream, rows begin `stride` apart. So the columns of a matrix that a rank holds take the numbers
/// that they have in the whole matrix. By itself: element i takes number i of stream 0.
struct RandomRows {
  int64_t begin = 0;
  uint64_t stream = 0;
  int64_t first = 0;   ///< number of the first element of the first row
  int64_t within = 0;  ///< elements of that row that lie before `begin`
  int64_t width = std::numeric_limits<int64_t>::max();
  int64_t stride = 0;
};

}  // namespace tapestry::kernels

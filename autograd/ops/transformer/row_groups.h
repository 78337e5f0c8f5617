// Groups of rows of a matrix, as ops on the experts of a mixture have them; used by those.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// Where each group of rows ends, ascending.
using GroupEnds = std::vector<int64_t>;

/// ValueError, with the op, unless there is an end for each of the `groups` and they ascend from 0
/// or more to `rows`.
void check_group_ends(std::string_view op, const GroupEnds& ends, int64_t groups, int64_t rows);

/// The sum of the rows of each group: x [R, n], result [E, n].
Tensor sum_groups(const Tensor& x, const GroupEnds& ends);

/// y [R, n] = the row of values [E, n] that belongs to its group.
void fill_groups(const Tensor& values, const GroupEnds& ends, const Tensor& y);

}  // namespace tapestry

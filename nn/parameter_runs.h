// A rank's slice of a logical tensor as runs of elements that lie together in its parameter.
//
// The slice has its elements numbered in row-major order. A rank that updates a piece of a
// parameter (elements [first, first + count) of it) has a range of these numbers, because both
// orders agree.
#pragma once

#include <algorithm>
#include <cstdint>

#include "nn/parameter.h"

namespace tapestry::nn {

/// Numbers [begin, end) of a slice.
struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};

/// How the elements of a slice lie in its parameter: `width` of them together, every `stride`, the
/// first at `begin`.
struct ParameterRows {
  int64_t begin = 0;
  int64_t width = 0;
  int64_t stride = 1;
};
ParameterRows parameter_rows(const LogicalTensor& logical);

/// What of the slice lies in elements [first, first + count) of the parameter.
ElementRange range_in_part(const LogicalTensor& logical, int64_t first, int64_t count);

/// Calls visit(number, element, count) for runs of the range that lie together in the parameter:
/// `element` of it and the following are `number` of the slice and the following.
template <class Visit>
void for_each_parameter_run(const LogicalTensor& logical, ElementRange range, Visit&& visit) {
  const ParameterRows rows = parameter_rows(logical);
  for (int64_t number = range.begin; number < range.end;) {
    const int64_t within = number % rows.width;
    const int64_t count = std::min(rows.width - within, range.end - number);
    visit(number, number / rows.width * rows.stride + rows.begin + within, count);
    number += count;
  }
}

}  // namespace tapestry::nn

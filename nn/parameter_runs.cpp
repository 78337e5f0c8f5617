#include "nn/parameter_runs.h"

namespace tapestry::nn {

namespace {

// Numbers of the slice before element `end` of the parameter.
int64_t numbers_before(const ParameterRows& rows, int64_t end) {
  const int64_t within = end % rows.stride - rows.begin;
  return end / rows.stride * rows.width + std::clamp<int64_t>(within, 0, rows.width);
}

}  // namespace

ParameterRows parameter_rows(const LogicalTensor& logical) {
  int64_t inner = 1;
  for (int64_t axis = logical.axis + 1; axis < logical.view_shape.size(); ++axis) {
    inner *= logical.view_shape[axis];
  }
  const int64_t all = logical.view_shape.size() == 0 ? 1 : logical.view_shape[logical.axis];
  return {.begin = logical.begin * inner,
          .width = (logical.end - logical.begin) * inner,
          .stride = all * inner};
}

ElementRange range_in_part(const LogicalTensor& logical, int64_t first, int64_t count) {
  if (count == 0 || logical.local_shape().numel() == 0) {
    return {};
  }
  const ParameterRows rows = parameter_rows(logical);
  return {numbers_before(rows, first), numbers_before(rows, first + count)};
}

}  // namespace tapestry::nn

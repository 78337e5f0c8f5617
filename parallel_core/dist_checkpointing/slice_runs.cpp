#include "parallel_core/dist_checkpointing/slice_runs.h"

namespace tapestry {

namespace {

// Numbers of the slice before element `end` of the parameter.
int64_t numbers_before(const ParameterRows& rows, int64_t end) {
  const int64_t within = end % rows.stride - rows.begin;
  return end / rows.stride * rows.width + std::clamp<int64_t>(within, 0, rows.width);
}

}  // namespace

ParameterRows parameter_rows(const nn::LogicalTensor& logical) {
  int64_t inner = 1;
  for (int64_t axis = logical.axis + 1; axis < logical.view_shape.size(); ++axis) {
    inner *= logical.view_shape[axis];
  }
  const int64_t all = logical.view_shape.size() == 0 ? 1 : logical.view_shape[logical.axis];
  return {.begin = logical.begin * inner,
          .width = (logical.end - logical.begin) * inner,
          .stride = all * inner};
}

ElementRange range_in_part(const nn::LogicalTensor& logical, int64_t first, int64_t count) {
  if (count == 0 || logical.local_shape().numel() == 0) {
    return {};
  }
  const ParameterRows rows = parameter_rows(logical);
  return {numbers_before(rows, first), numbers_before(rows, first + count)};
}

FileRuns::FileRuns(const nn::LogicalTensor& logical, const FilePlace& place)
    : place_(place),
      slice_(logical.local_shape()),
      offset_(logical.offset.empty() ? Shape::filled(logical.shape.size(), 0) : logical.offset) {
  const int64_t axes = slice_.size();
  if (axes == 0) {
    return;
  }
  columns_ = slice_[axes - 1];
  together_ = columns_;
  for (int64_t axis = axes - 1; axis > 0 && slice_[axis] == place.shape[axis]; --axis) {
    together_ *= slice_[axis - 1];
  }
  if (place.block > 0 && together_ == slice_.numel()) {
    row_ = together_ / std::max<int64_t>(slice_[0], 1);
  }
}

int64_t FileRuns::element_of(int64_t number) const {
  if (place_.transposed) {
    const int64_t row = place_.row(offset_[0] + number / columns_);
    const int64_t column = offset_[1] + number % columns_;
    return column * place_.shape[1] + row;
  }
  int64_t element = 0;
  int64_t scale = 1;
  for (int64_t axis = slice_.size() - 1; axis >= 0; --axis) {
    const int64_t index = offset_[axis] + number % slice_[axis];
    element += (axis == 0 ? place_.row(index) : index) * scale;
    scale *= place_.shape[axis];
    number /= slice_[axis];
  }
  return element;
}

}  // namespace tapestry

#include "parallel_core/dist_checkpointing/slice_runs.h"

namespace tapestry {

FileRuns::FileRuns(const nn::LogicalTensor& logical, const FilePlace& place)
    : place_(place),
      slice_(logical.local_shape()),
      offset_(logical.offset.empty() ? Shape::filled(logical.shape.size(), 0) : logical.offset) {
  const int64_t axes = slice_.size();
  if (axes == 0) {
    return;
  }
  columns_ = place.strides && axes == 1 ? 1 : slice_[axes - 1];
  if (place.strides) {
    return;
  }
  together_ = columns_;
  for (int64_t axis = axes - 1; axis > 0 && slice_[axis] == place.shape[axis]; --axis) {
    together_ *= slice_[axis - 1];
  }
  if (place.block > 0 && together_ == slice_.numel()) {
    row_ = together_ / std::max<int64_t>(slice_[0], 1);
  }
}

int64_t FileRuns::element_of(int64_t number) const {
  if (place_.strides) {
    const int64_t row = offset_[0] + number / columns_;
    const int64_t column = (slice_.size() > 1 ? offset_[1] : 0) + number % columns_;
    return place_.strides->offset + row * place_.strides->row + column * place_.strides->column;
  }
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

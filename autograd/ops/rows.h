// What row-wise ops share: widening 16-bit values, maxima as constants, positions in messages.
#pragma once

#include <string>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// float32 for 16-bit floating dtypes, else the dtype itself: what sums are carried in.
inline DType wide_dtype(DType dtype) {
  return dtype == kBFloat16 || dtype == kFloat16 ? kFloat32 : dtype;
}
/// x in wide_dtype; recorded.
inline Tensor widen(const Tensor& x) { return x.to(wide_dtype(x.dtype())); }

/// Largest element over normalized axes, which stay with size 1; not recorded. An infinite or
/// missing maximum becomes 0, so that it can be subtracted.
Tensor finite_max(const Tensor& x, const Shape& axes);

/// x[..., label] for int labels of shape x.shape() without the last axis, [...]; 0 where the label
/// is no column. Recorded.
Tensor pick_columns(const Tensor& x, const Tensor& labels);

/// x seen as [rows, n] where n is the last axis: elements of a row adjacent, rows one stride apart.
struct RowView {
  Tensor tensor;  ///< x, or a contiguous copy where its strides do not allow that
  int64_t rows = 0;
  int64_t n = 0;
  int64_t stride = 0;
};
/// x must have an axis. Not recorded.
RowView rows_of(const Tensor& x);

/// A new tensor without gaps whose rows (last axis) lie in memory in the order in which x's do.
Tensor empty_in_order_of(const Tensor& x);

/// "[1, 4]": the indices of a row-major position, for messages. The text is made only when it is
/// printed, so that a check of every element costs nothing; use it within the expression that makes
/// it.
class PositionIn {
 public:
  PositionIn(const Shape& shape, int64_t position) : shape_(shape), position_(position) {}
  friend std::ostream& operator<<(std::ostream& out, const PositionIn& position);

 private:
  const Shape& shape_;
  int64_t position_;
};
inline PositionIn position_in(const Shape& shape, int64_t position) { return {shape, position}; }

}  // namespace tapestry

// Views, copies and joins. Views share storage with their input; see also the methods of Tensor.
// A view is a handle of its own, also where it shows all of x in the same shape; only contiguous()
// and to() may return x itself.
#pragma once

#include <optional>
#include <span>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// The same elements under another shape, without copying; one size may be -1. ValueError if the
/// number of elements differs or the strides do not allow it (then use reshape).
Tensor view(const Tensor& x, const Shape& shape);
// Where nothing changes, reshape(), expand() and slice() give x itself, not a second handle.

/// A view where the strides allow it, else a copy.
Tensor reshape(const Tensor& x, const Shape& shape);
/// Axes in another order; axes[i] is the input's axis at place i. ValueError unless each is named
/// once.
Tensor permute(const Tensor& x, const Shape& axes);
/// Exchanges two axes.
Tensor transpose(const Tensor& x, int64_t axis0, int64_t axis1);
/// Repeats axes of size 1 with stride 0 and adds axes in front; -1 keeps a size. The gradient is
/// summed. ValueError if another size would change.
Tensor expand(const Tensor& x, const Shape& shape);
/// Elements start, start + step, ... below stop of one axis. Negative positions count from the end;
/// both are limited to the axis. ValueError if step < 1.
Tensor slice(const Tensor& x, int64_t axis, int64_t start, int64_t stop, int64_t step = 1);
/// One entry of an axis, which disappears. IndexError if it is out of range.
Tensor select(const Tensor& x, int64_t axis, int64_t index);
/// Removes an axis of size 1 (no axis given: all of them); an axis of another size stays.
Tensor squeeze(const Tensor& x, std::optional<int64_t> axis = std::nullopt);
/// Inserts an axis of size 1 at a position in [-dim-1, dim].
Tensor unsqueeze(const Tensor& x, int64_t axis);
/// Parts of an axis with the given sizes, which must add up to it (ValueError). Views; any number.
/// The gradient is one join of those of the parts.
TensorList split(const Tensor& x, std::span<const int64_t> sizes, int64_t axis = 0);
inline TensorList split(const Tensor& x, const Shape& sizes, int64_t axis = 0) {
  return split(x, std::span<const int64_t>(sizes), axis);
}
/// Parts of the given size, the last one smaller if need be.
TensorList split(const Tensor& x, int64_t size, int64_t axis = 0);
/// At most `count` parts of one size, the last one smaller if need be: of size(axis) / count,
/// rounded up. ValueError if count is below 1.
TensorList chunk(const Tensor& x, int64_t count, int64_t axis = 0);
/// Joins the axes from first to last into one: a view where the strides allow it, else a copy. A
/// scalar becomes a vector. ValueError if first lies behind last.
Tensor flatten(const Tensor& x, int64_t first = 0, int64_t last = -1);
/// A row-major tensor: x itself, or a copy.
Tensor contiguous(const Tensor& x);
/// Always a copy.
Tensor clone(const Tensor& x);
/// Converts the elements; x itself if it has the dtype already. See kernels::cast_row.
Tensor to(const Tensor& x, DType dtype);

/// Joins tensors along an existing axis. Dtypes are promoted. ValueError if the list is empty or
/// other axes differ.
Tensor cat(const TensorList& tensors, int64_t axis = 0);
/// Joins tensors of one shape along a new axis.
Tensor stack(const TensorList& tensors, int64_t axis = 0);

/// Padding of one axis: entries before and after.
struct Padding {
  int64_t before = 0;
  int64_t after = 0;
};
/// Surrounds x with a value; one Padding per axis, first axis first. ValueError if their number
/// differs from x.dim() or one is negative.
Tensor pad(const Tensor& x, std::span<const Padding> padding, Scalar value = 0);

}  // namespace tapestry

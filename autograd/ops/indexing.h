// Picking, placing, ordering and repeating elements.
//
// Indices are int64 or int32 (TypeError); results that are indices are int64. IndexError, naming
// the value, its position and the range, if an index lies outside its axis. Axes count from the end
// when negative. Places that are written more than once are filled in row-major order, so results
// do not depend on the number of threads, and where one value stays, only that one has a gradient.
#pragma once

#include <array>
#include <optional>

#include "autograd/ops/reduction.h"
#include "autograd/tensor/tensor.h"

namespace tapestry {

// -- along one axis ---------------------------------------------------------------------------
/// y[.., j, ..] = x[.., index[.., j, ..], ..]. index has as many axes as x and is nowhere larger
/// except on `axis` (ValueError); y has its shape. Indices are not negative.
Tensor gather(const Tensor& x, int64_t axis, const Tensor& index);
/// x with src[.., j, ..] written to place index[.., j, ..] of the axis. src has at least the shape
/// of index and x's dtype (ValueError, TypeError); the last of several writes stays.
Tensor scatter(const Tensor& x, int64_t axis, const Tensor& index, const Tensor& src);
Tensor scatter(const Tensor& x, int64_t axis, const Tensor& index, Scalar value);
/// x with src added at those places; repeated indices add up. float16 and bfloat16 are summed in
/// float32.
Tensor scatter_add(const Tensor& x, int64_t axis, const Tensor& index, const Tensor& src);

/// Entries of an axis, by a vector (or scalar) of indices that are not negative (ValueError,
/// IndexError).
Tensor index_select(const Tensor& x, int64_t axis, const Tensor& index);
/// x with src added to, or written over, the entries of an axis. src has x's shape, except that
/// `axis` has one entry per index, and x's dtype (ValueError, TypeError).
Tensor index_add(const Tensor& x, int64_t axis, const Tensor& index, const Tensor& src);
Tensor index_copy(const Tensor& x, int64_t axis, const Tensor& index, const Tensor& src);

// -- by coordinates -----------------------------------------------------------------------------
/// y[p..] = x[indices[0][p], indices[1][p], ..]: one index tensor per leading axis, broadcast
/// together; the other axes of x follow. Negative indices count from the end.
Tensor index(const Tensor& x, const TensorList& indices);
/// x with values, broadcast to the shape of index(x, indices), written there, or added.
Tensor index_put(const Tensor& x,
                 const TensorList& indices,
                 const Tensor& values,
                 bool accumulate = false);
/// Coordinates of the elements that are not zero, [count, dim], in row-major order. No gradient.
Tensor nonzero(const Tensor& x);
/// The elements where the bool mask, which broadcasts to x, is true, as a vector.
Tensor masked_select(const Tensor& x, const Tensor& mask);
/// int64 [.., num_classes], 1 at each index and 0 elsewhere; -1 classes: the largest index + 1.
Tensor one_hot(const Tensor& index, int64_t num_classes = -1);

// -- triangles ------------------------------------------------------------------------------------
/// The lower or upper triangle of the last two axes, zeros elsewhere; `diagonal` moves the edge to
/// the right. ValueError for fewer than two axes.
Tensor tril(const Tensor& x, int64_t diagonal = 0);
Tensor triu(const Tensor& x, int64_t diagonal = 0);

// -- order of entries -----------------------------------------------------------------------------
/// Entries move up by `shift` along each axis, those that leave come back at the start. No axes:
/// one shift of the flattened tensor. ValueError unless there is one shift per axis.
Tensor roll(const Tensor& x, const Shape& shifts, const Shape& axes = {});
/// Reverses axes. An empty list means all of them.
Tensor flip(const Tensor& x, const Shape& axes);
/// The tensor laid end to end; one count per axis, more counts add axes in front. ValueError for
/// fewer counts than axes or a negative one.
Tensor repeat(const Tensor& x, const Shape& counts);
/// Each entry of an axis (no axis: of the flattened tensor) that many times in a row.
Tensor repeat_interleave(const Tensor& x,
                         int64_t count,
                         std::optional<int64_t> axis = std::nullopt);
/// The same with one count per entry.
Tensor repeat_interleave(const Tensor& x,
                         const Tensor& counts,
                         std::optional<int64_t> axis = std::nullopt);

// -- sorting: NaN counts as the largest; equal elements keep their order
// ----------------------------
ValuesAndIndices sort(const Tensor& x, int64_t axis = -1, bool descending = false);
Tensor argsort(const Tensor& x, int64_t axis = -1, bool descending = false);
/// The k largest or smallest of an axis, best first. ValueError unless 0 <= k <= size of the axis.
ValuesAndIndices topk(const Tensor& x, int64_t k, int64_t axis = -1, bool largest = true);

/// Distinct values in ascending order; where each element of x is among them (int64, x's shape);
/// how often each occurs (int64). No gradient.
struct UniqueResult {
  Tensor values;
  Tensor inverse;
  Tensor counts;
};
UniqueResult unique(const Tensor& x);

}  // namespace tapestry

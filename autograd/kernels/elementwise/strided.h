// Loops over N-d arrays in raw memory, split into the rows that element-wise kernels take.
//
// Sizes and strides are row-major lists of ndim <= kMaxDims numbers, strides in elements: 0 repeats
// (broadcast), negative runs backwards. Axes are dropped, sorted and merged first, so that
// contiguous operands become one row; the order of visiting is therefore free, and an output must
// not overlap itself or, unless it is exactly the same array, an input.
#pragma once

#include <cstdint>
#include <span>

#include "autograd/kernels/elementwise/elementwise.h"
#include "autograd/kernels/machine/dtype.h"
#include "autograd/kernels/machine/limits.h"

namespace tapestry::kernels {

inline constexpr int kMaxOperands = 4;

/// Sizes of a loop.
struct Extent {
  int ndim;
  const int64_t* sizes;
};

/// An operand: where its first element is, and its stride along each axis of the loop.
struct View {
  void* data;
  const int64_t* strides;  ///< in elements
  int64_t item;            ///< bytes of an element
};

/// An operand that is only read.
struct ConstView {
  ConstView(const void* data_, const int64_t* strides_, int64_t item_)
      : data(data_), strides(strides_), item(item_) {}
  ConstView(const View& view)  // NOLINT(google-explicit-constructor): what is written can be read
      : data(view.data), strides(view.strides), item(view.item) {}

  const void* data;
  const int64_t* strides;
  int64_t item;
};

/// One row: n elements of each operand, from ptrs[i], strides[i] elements apart. The body may
/// change neither list.
using RowBody = void (*)(void* ctx, int64_t n, char** ptrs, const int64_t* strides);

/// Calls body for the rows of an N-d loop of up to kMaxOperands operands (the last one is the
/// output; its smallest stride becomes the row). If parallel, rows, or parts of long rows, are
/// spread over the team in units of kGrainSize elements. No calls if a size is 0.
void for_each_row(const Extent& extent,
                  int num_operands,
                  const View* operands,
                  bool parallel,
                  RowBody body,
                  void* ctx);

/// The whole array through one row function, in parallel.
void apply_unary(UnaryRow row, const Extent& extent, const ConstView& x, const View& y);
void apply_binary(
    BinaryRow row, const Extent& extent, const ConstView& a, const ConstView& b, const View& y);
/// The condition has items of one byte, a, b and y of the same size.
void apply_ternary(TernaryRow row,
                   const Extent& extent,
                   const ConstView& condition,
                   const ConstView& a,
                   const ConstView& b,
                   const View& y);
void apply_scalar(ScalarRow row, const Extent& extent, const ConstView& x, double s, const View& y);

/// The same for n elements of contiguous operands. What apply_* finds out about strides takes
/// longer than the work on a small array.
void apply_unary_contiguous(
    UnaryRow row, int64_t n, const void* x, int64_t x_item, void* y, int64_t y_item);
void apply_binary_contiguous(
    BinaryRow row, int64_t n, const void* a, const void* b, int64_t item, void* y, int64_t y_item);

/// A dense matrix of which only the bytes of a row are known.
struct Rows {
  const void* data;
  int64_t bytes;  ///< of a row
};

/// Row i of out is row i of each of the parts, one behind the other.
void join_rows(int64_t rows, std::span<const Rows> parts, void* out);

/// dst = src, same dtype. Transposes, where source and destination run along different axes, are
/// copied in square blocks that stay in cache.
void copy_strided(DType dtype, const Extent& extent, const ConstView& src, const View& dst);

}  // namespace tapestry::kernels

// Loops over N-d arrays in raw memory, split into the rows that element-wise kernels take.
//
// Sizes and strides are row-major lists of ndim <= kMaxDims numbers, strides in elements: 0 repeats
// (broadcast), negative runs backwards. Axes are dropped, sorted and merged first, so that
// contiguous operands become one row; the order of visiting is therefore free, and an output must
// not overlap itself or, unless it is exactly the same array, an input.
#pragma once

#include <cstdint>

#include "autograd/kernels/dtype.h"
#include "autograd/kernels/elementwise.h"
#include "autograd/kernels/limits.h"

namespace tapestry::kernels {

inline constexpr int kMaxOperands = 4;

struct StridedOperand {
  void* data;
  int64_t strides[kMaxDims];  // in elements
  int64_t item_size;          // bytes
};

/// One row: n elements of each operand, from ptrs[i], strides[i] elements apart. The body may
/// change neither list.
using RowBody = void (*)(void* ctx, int64_t n, char** ptrs, const int64_t* strides);

/// Calls body for the rows of an N-d loop of up to kMaxOperands operands (the last one is the
/// output; its smallest stride becomes the row). If parallel, rows, or parts of long rows, are
/// spread over the team in units of kGrainSize elements. No calls if a size is 0.
void for_each_row(int ndim,
                  const int64_t* sizes,
                  int num_operands,
                  const StridedOperand* operands,
                  bool parallel,
                  RowBody body,
                  void* ctx);

/// The whole array through one row function. *_item are bytes per element. In parallel.
void apply_unary(UnaryRow row,
                 int ndim,
                 const int64_t* sizes,
                 const void* x,
                 const int64_t* x_strides,
                 int64_t x_item,
                 void* y,
                 const int64_t* y_strides,
                 int64_t y_item);

void apply_binary(BinaryRow row,
                  int ndim,
                  const int64_t* sizes,
                  const void* a,
                  const int64_t* a_strides,
                  int64_t a_item,
                  const void* b,
                  const int64_t* b_strides,
                  int64_t b_item,
                  void* y,
                  const int64_t* y_strides,
                  int64_t y_item);

/// The same for n elements of contiguous operands. What apply_* finds out about strides takes
/// longer than the work on a small array.
void apply_unary_contiguous(
    UnaryRow row, int64_t n, const void* x, int64_t x_item, void* y, int64_t y_item);
void apply_binary_contiguous(
    BinaryRow row, int64_t n, const void* a, const void* b, int64_t item, void* y, int64_t y_item);

/// cond has items of one byte, a, b and y of `item`.
void apply_ternary(TernaryRow row,
                   int ndim,
                   const int64_t* sizes,
                   const void* cond,
                   const int64_t* cond_strides,
                   const void* a,
                   const int64_t* a_strides,
                   const void* b,
                   const int64_t* b_strides,
                   void* y,
                   const int64_t* y_strides,
                   int64_t item);

void apply_scalar(ScalarRow row,
                  int ndim,
                  const int64_t* sizes,
                  const void* x,
                  const int64_t* x_strides,
                  int64_t x_item,
                  double s,
                  void* y,
                  const int64_t* y_strides,
                  int64_t y_item);

/// dst = src, same dtype. Transposes, where source and destination run along different axes, are
/// copied in square blocks that stay in cache.
void copy_strided(DType dtype,
                  int ndim,
                  const int64_t* sizes,
                  const void* src,
                  const int64_t* src_strides,
                  void* dst,
                  const int64_t* dst_strides);

}  // namespace tapestry::kernels

// Picking elements by index along one axis, and putting them back.
//
// Sizes and strides are row-major lists of ndim <= kMaxDims numbers, strides in elements. Indices
// are contiguous, already checked to lie in range and not negative. Where several sources meet one
// destination, they are taken in row-major order whatever the number of threads.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

/// Indices of `sizes` into an axis of an array that has these strides.
struct AxisIndex {
  int ndim;
  const int64_t* sizes;
  int axis;
  const int64_t* index;
  const int64_t* strides;
};

/// y[i] = x[i with i[axis] replaced by index[i]] for every i within sizes, which are those of index
/// and of the contiguous y; strides are x's. item_size (bytes) is that of one of the dtypes.
void gather(int64_t item_size, const AxisIndex& at, const void* x, void* y);

/// y[i with i[axis] replaced by index[i]] = src[i]; the last one stays. src is contiguous, strides
/// are y's.
void scatter(int64_t item_size, const AxisIndex& at, const void* src, void* y);

/// The same with +=. float16 and bfloat16 are rounded at each step; bool is `or`.
void scatter_add(DType dtype, const AxisIndex& at, const void* src, void* y);

/// `count` rows by their numbers in contiguous [outer, n, inner] arrays.
struct RowIndex {
  int64_t outer;
  int64_t n;
  int64_t inner;
  int64_t count;
  const int64_t* index;
};

/// y[o,j,:] = x[o,index[j],:], j < count.
void index_rows(int64_t item_size, const RowIndex& at, const void* x, void* y);

/// y[o,index[j],:] = src[o,j,:]; the last one stays.
void put_rows(int64_t item_size, const RowIndex& at, const void* src, void* y);

/// y[o,index[j],:] += src[o,j,:]; as scatter_add.
void add_rows(DType dtype, const RowIndex& at, const void* src, void* y);

}  // namespace tapestry::kernels

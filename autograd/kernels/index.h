// Picking elements by index along one axis, and putting them back.
//
// Sizes and strides are row-major lists of ndim <= kMaxDims numbers, strides in elements. Indices
// are contiguous, already checked to lie in range and not negative. Where several sources meet one
// destination, they are taken in row-major order whatever the number of threads.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

/// y[i] = x[i with i[axis] replaced by index[i]] for every i within sizes, which are those of index
/// and of the contiguous y. item_size (bytes) is that of one of the dtypes.
void gather(int64_t item_size,
            int ndim,
            const int64_t* sizes,
            int axis,
            const int64_t* index,
            const void* x,
            const int64_t* x_strides,
            void* y);

/// y[i with i[axis] replaced by index[i]] = src[i]; the last one stays. src is contiguous.
void scatter(int64_t item_size,
             int ndim,
             const int64_t* sizes,
             int axis,
             const int64_t* index,
             const void* src,
             void* y,
             const int64_t* y_strides);

/// The same with +=. float16 and bfloat16 are rounded at each step; bool is `or`.
void scatter_add(DType dtype,
                 int ndim,
                 const int64_t* sizes,
                 int axis,
                 const int64_t* index,
                 const void* src,
                 void* y,
                 const int64_t* y_strides);

/// Rows of contiguous [outer, n, inner] arrays: y[o,j,:] = x[o,index[j],:], j < count.
void index_rows(int64_t item_size,
                int64_t outer,
                int64_t n,
                int64_t inner,
                int64_t count,
                const int64_t* index,
                const void* x,
                void* y);

/// y[o,index[j],:] = src[o,j,:]; the last one stays.
void put_rows(int64_t item_size,
              int64_t outer,
              int64_t n,
              int64_t inner,
              int64_t count,
              const int64_t* index,
              const void* src,
              void* y);

/// y[o,index[j],:] += src[o,j,:]; as scatter_add.
void add_rows(DType dtype,
              int64_t outer,
              int64_t n,
              int64_t inner,
              int64_t count,
              const int64_t* index,
              const void* src,
              void* y);

}  // namespace tapestry::kernels

#include "autograd/ops/blas_matrix.h"

#include <algorithm>

#include "autograd/ops/map.h"

namespace tapestry {

namespace {

// Leading dimension of rows x columns with these strides as BLAS wants it, or 0 if it cannot be
// had. Axes of size 1 may have any stride.
int64_t leading_dimension(int64_t rows,
                          int64_t columns,
                          int64_t row_stride,
                          int64_t column_stride) {
  const bool unit = column_stride == 1 || columns <= 1;
  const int64_t least = std::max<int64_t>(1, columns);
  if (rows <= 1) {
    return unit ? least : 0;
  }
  return unit && row_stride >= least ? row_stride : 0;
}

bool fits_blas(const Tensor& x) {
  const int64_t rows = x.size(-2);
  const int64_t columns = x.size(-1);
  const int64_t row_stride = x.strides()[x.dim() - 2];
  const int64_t column_stride = x.strides().back();
  return leading_dimension(rows, columns, row_stride, column_stride) > 0 ||
         leading_dimension(columns, rows, column_stride, row_stride) > 0;
}

}  // namespace

Tensor blas_layout(const Tensor& x) { return fits_blas(x) ? x : dense_copy(x); }

BlasMatrix as_blas_matrix(const Tensor& x, const Shape& batch_shape) {
  BlasMatrix out;
  out.data = static_cast<const std::byte*>(x.raw());
  out.rows = x.size(-2);
  out.columns = x.size(-1);
  const int64_t row_stride = x.strides()[x.dim() - 2];
  const int64_t column_stride = x.strides().back();
  const int64_t plain = leading_dimension(out.rows, out.columns, row_stride, column_stride);
  out.transposed = plain == 0;
  out.leading =
      plain > 0 ? plain : leading_dimension(out.columns, out.rows, column_stride, row_stride);
  out.batch = Strides::filled(batch_shape.size(), 0);
  const int64_t missing = batch_shape.size() - (x.dim() - 2);
  for (int64_t i = missing; i < batch_shape.size(); ++i) {
    out.batch[i] = x.shape()[i - missing] == 1 ? 0 : x.strides()[i - missing];
  }
  return out;
}

}  // namespace tapestry

// Matrices of 8 or 4 bits a number, which are multiplied without being widened as a whole.
#pragma once

#include <cstdint>

#include "autograd/kernels/gemm/quantized_blocks.h"
#include "autograd/tensor/tensor.h"

namespace tapestry {

using kernels::BlockFormat;

/// A matrix [out, in] whose rows are blocks of Q8_0 or Q4_0 (see kernels/gemm/quantized_blocks.h),
/// as GGUF files hold them.
class QuantizedMatrix {
 public:
  QuantizedMatrix() = default;
  /// Of `bytes`, uint8 [out, in / 32 * the bytes of a block], contiguous (TypeError, ValueError);
  /// shares them.
  QuantizedMatrix(const Tensor& bytes, BlockFormat format);
  /// One whose numbers are all 0, for rows that are still to come.
  QuantizedMatrix(int64_t out, int64_t in, BlockFormat format);

  bool defined() const { return bytes_.defined(); }
  int64_t out() const { return bytes_.shape()[0]; }
  int64_t in() const;
  const Tensor& bytes() const { return bytes_; }
  BlockFormat format() const { return format_; }

  /// Rows [begin, end), sharing the bytes. ValueError if there are no such rows.
  QuantizedMatrix rows(int64_t begin, int64_t end) const;

 private:
  Tensor bytes_;
  BlockFormat format_ = BlockFormat::kQ8_0;
};

/// Of values [out, in] in float32, bfloat16 or float16 (TypeError). ValueError if they have not two
/// axes, if `in` is no multiple of 32, or if a number is not finite or too large for a scale.
QuantizedMatrix quantize(const Tensor& values, BlockFormat format);

/// The same into rows of a matrix that exists, from `first_row` on, whose width the values have
/// (ValueError): for a matrix that comes piece by piece.
void quantize_into(const Tensor& values, const QuantizedMatrix& matrix, int64_t first_row);

/// The numbers [out, in], rounded to `dtype`: float32 (exact), bfloat16 or float16 (TypeError).
Tensor dequantize(const QuantizedMatrix& matrix, DType dtype = DType::kFloat32);

/// y = x matrix^T + bias: x [.., in] of any floating dtype, bias [out] of that dtype or
/// float32, or undefined; y [.., out] in x's dtype. Gradients: dx = dy matrix, dbias = sum dy; the
/// matrix is a constant. TypeError, ValueError as linear().
///
/// Few rows (up to 64) are multiplied with the blocks as they lie, each number widened exactly: a
/// block's sum is in float32, times its scale, added in the order of the blocks. For more rows,
/// blocks of the matrix are widened to x's dtype (rounded once if that has 16 bits) and multiplied
/// as any other matrix.
Tensor linear_quantized(const Tensor& x, const QuantizedMatrix& matrix, const Tensor& bias = {});

/// Its dx = dy matrix, dy [.., out]; the gradient is that of linear_quantized in turn.
Tensor linear_quantized_backward(const Tensor& dy, const QuantizedMatrix& matrix);

}  // namespace tapestry

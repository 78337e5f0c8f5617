#include "autograd/ops/transformer/quantized_matrix.h"

#include "autograd/kernels/gemm/gemm_quantized.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

constexpr int64_t kNumbers = kernels::kBlockNumbers;
constexpr OpName kLinear = "linear_quantized";
constexpr OpName kLinearBackward = "linear_quantized_backward";

void check_width(std::string_view what, int64_t in, BlockFormat format) {
  check<ValueError>(in % kNumbers == 0, what, ": rows of ", in, " numbers cannot be ",
                    name_of(format), ", whose blocks have ", kNumbers);
}

bool is_narrow_enough(DType dtype) {
  return dtype == kFloat32 || dtype == kBFloat16 || dtype == kFloat16;
}

kernels::BlockMatrix kernel_matrix(const QuantizedMatrix& matrix) {
  return {matrix.format(), matrix.bytes().raw(), matrix.out(), matrix.in()};
}

/// [rows, width] of x, dense.
Tensor dense_rows(const Tensor& x) {
  Shape leading = x.shape();
  const int64_t width = leading.back();
  leading.pop_back();
  return dense(x.reshape({leading.numel(), width}));
}

/// The bytes are an input, so that whoever observes or lends memory sees them.
struct LinearQuantized {
  static constexpr OpName name = kLinear;
  BlockFormat format;
  SavedTensor bytes = {};
  DType bias_dtype = kFloat32;

  Tensor forward(const Tensor& x, const Tensor& bytes_, const Tensor& bias) {
    const QuantizedMatrix matrix(bytes_, format);
    if (x.requires_grad()) {
      bytes.save(bytes_);
    }
    Shape shape = x.shape();
    shape.back() = matrix.out();
    if (bias.defined()) {
      bias_dtype = bias.dtype();
    }
    if (x.dtype() == kFloat64) {
      const Tensor y = matmul(x, dequantize(matrix).to(kFloat64).t());
      return bias.defined() ? add(y, bias.to(kFloat64)) : y;
    }
    Tensor y = empty(shape, x.dtype());
    if (bias.defined()) {
      copy_values(broadcast_view(bias.to(x.dtype()), shape), y);
    }
    const Tensor rows = dense_rows(x);
    kernels::gemm_quantized(x.dtype(), rows.size(0), kernel_matrix(matrix), rows.raw(), matrix.in(),
                            bias.defined() ? 1 : 0, y.raw(), matrix.out());
    return y;
  }

  std::array<Tensor, 3> backward(const Tensor& dy, NeedsGrad needs) const {
    std::array<Tensor, 3> out;
    if (needs[0]) {
      out[0] = linear_quantized_backward(dy, QuantizedMatrix(bytes.get(), format));
    }
    if (needs[2]) {
      Shape leading = dy.shape();
      const int64_t width = leading.back();
      leading.pop_back();
      out[2] = sum(dy.reshape({leading.numel(), width}).to(bias_dtype), {0});
    }
    return out;
  }
};

/// dx = dy matrix; its derivative is linear_quantized in turn.
struct LinearQuantizedBackward {
  static constexpr OpName name = kLinearBackward;
  BlockFormat format;
  SavedTensor bytes = {};

  Tensor forward(const Tensor& dy, const Tensor& bytes_) {
    const QuantizedMatrix matrix(bytes_, format);
    if (dy.requires_grad()) {
      bytes.save(bytes_);
    }
    Shape shape = dy.shape();
    shape.back() = matrix.in();
    if (dy.dtype() == kFloat64) {
      return matmul(dy, dequantize(matrix).to(kFloat64));
    }
    Tensor dx = empty(shape, dy.dtype());
    const Tensor rows = dense_rows(dy);
    kernels::gemm_quantized_backward(dy.dtype(), rows.size(0), kernel_matrix(matrix), rows.raw(),
                                     matrix.out(), dx.raw(), matrix.in());
    return dx;
  }
  std::array<Tensor, 2> backward(const Tensor& ddx, NeedsGrad /*needs*/) const {
    return {linear_quantized(ddx, QuantizedMatrix(bytes.get(), format)), Tensor()};
  }
};

void check_linear(std::string_view name,
                  const Tensor& x,
                  const QuantizedMatrix& matrix,
                  int64_t width) {
  check<ValueError>(matrix.defined(), name, ": the matrix is undefined");
  check<TypeError>(is_floating(x.dtype()), name, ": x must be floating, it is ",
                   name_of(x.dtype()));
  check<ValueError>(x.dim() > 0 && x.shape().back() == width, name, ": the last axis of ",
                    x.shape(), " must be ", width, ", the matrix is [", matrix.out(), ", ",
                    matrix.in(), "]");
}

}  // namespace

QuantizedMatrix::QuantizedMatrix(const Tensor& bytes, BlockFormat format)
    : bytes_(bytes), format_(format) {
  check_defined("QuantizedMatrix", bytes, "bytes");
  check<TypeError>(bytes.dtype() == kUInt8, "QuantizedMatrix: blocks of ", name_of(format),
                   " must be uint8, got ", name_of(bytes.dtype()));
  check<ValueError>(bytes.dim() == 2 && bytes.is_contiguous() &&
                        bytes.size(1) % kernels::block_bytes(format) == 0,
                    "QuantizedMatrix: expected contiguous [out, in / 32 * ",
                    kernels::block_bytes(format), "] bytes of ", name_of(format), ", got ",
                    describe(bytes));
}

QuantizedMatrix::QuantizedMatrix(int64_t out, int64_t in, BlockFormat format) : format_(format) {
  check_width("QuantizedMatrix", in, format);
  bytes_ = zeros({out, kernels::block_row_bytes(format, in)}, kUInt8);
}

int64_t QuantizedMatrix::in() const {
  return bytes_.size(1) / kernels::block_bytes(format_) * kNumbers;
}

QuantizedMatrix QuantizedMatrix::rows(int64_t begin, int64_t end) const {
  check<ValueError>(begin >= 0 && begin <= end && end <= out(), "QuantizedMatrix: no rows [", begin,
                    ", ", end, ") of ", out());
  return {bytes_.slice(0, begin, end), format_};
}

QuantizedMatrix quantize(const Tensor& values, BlockFormat format) {
  check_defined("quantize", values, "values");
  check<TypeError>(is_narrow_enough(values.dtype()), "quantize: not defined for ",
                   name_of(values.dtype()));
  check<ValueError>(values.dim() == 2, "quantize: needs [out, in], got ", values.shape());
  check_width("quantize", values.size(1), format);
  const QuantizedMatrix matrix(
      empty({values.size(0), kernels::block_row_bytes(format, values.size(1))}, kUInt8), format);
  quantize_into(values, matrix, 0);
  return matrix;
}

void quantize_into(const Tensor& values, const QuantizedMatrix& matrix, int64_t first_row) {
  check_defined("quantize", values, "values", matrix.bytes(), "matrix");
  check<TypeError>(is_narrow_enough(values.dtype()), "quantize: not defined for ",
                   name_of(values.dtype()));
  check<ValueError>(values.dim() == 2 && values.size(1) == matrix.in() && first_row >= 0 &&
                        first_row + values.size(0) <= matrix.out(),
                    "quantize: ", values.shape(), " are no rows from ", first_row, " on of [",
                    matrix.out(), ", ", matrix.in(), "]");
  const Tensor rows = values.size(1) > 1 && values.strides()[1] != 1 ? dense_copy(values) : values;
  const BlockFormat format = matrix.format();
  const Tensor bytes = matrix.bytes();
  auto* const out =
      static_cast<char*>(bytes.raw()) + first_row * kernels::block_row_bytes(format, matrix.in());
  const bool good = kernels::encode_blocks(format, rows.dtype(), rows.size(0), rows.size(1),
                                           rows.raw(), rows.strides()[0], out);
  bytes.bump_version();
  check<ValueError>(good, "quantize: a number of ", describe(values),
                    " is not finite, or too large for the float16 scale of its block of ",
                    name_of(format), format == BlockFormat::kQ8_0 ? " (8 million)" : " (500,000)");
}

Tensor dequantize(const QuantizedMatrix& matrix, DType dtype) {
  check<ValueError>(matrix.defined(), "dequantize: the matrix is undefined");
  check<TypeError>(is_narrow_enough(dtype), "dequantize: not defined for ", name_of(dtype));
  Tensor out = empty({matrix.out(), matrix.in()}, dtype);
  kernels::decode_blocks(matrix.format(), dtype, matrix.out(), matrix.in(), matrix.bytes().raw(),
                         kernels::block_row_bytes(matrix.format(), matrix.in()), out.raw(),
                         matrix.in());
  return out;
}

Tensor linear_quantized(const Tensor& x, const QuantizedMatrix& matrix, const Tensor& bias) {
  check_defined(kLinear, x, "x");
  check_linear(kLinear, x, matrix, matrix.defined() ? matrix.in() : 0);
  if (bias.defined()) {
    check<TypeError>(bias.dtype() == x.dtype() || bias.dtype() == kFloat32, kLinear,
                     ": bias must be ", name_of(x.dtype()), " or float32, it is ",
                     name_of(bias.dtype()));
    check<ValueError>(bias.shape() == Shape{matrix.out()}, kLinear, ": bias ", bias.shape(),
                      " must have one entry per row of [", matrix.out(), ", ", matrix.in(), "]");
  }
  return apply_op(LinearQuantized{matrix.format()}, x, matrix.bytes(), bias);
}

Tensor linear_quantized_backward(const Tensor& dy, const QuantizedMatrix& matrix) {
  check_defined(kLinearBackward, dy, "dy");
  check_linear(kLinearBackward, dy, matrix, matrix.defined() ? matrix.out() : 0);
  return apply_op(LinearQuantizedBackward{matrix.format()}, dy, matrix.bytes());
}

}  // namespace tapestry

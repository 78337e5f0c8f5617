#include "autograd/ops/transformer/grouped_linear_quantized.h"

#include <array>

#include "autograd/kernels/gemm/gemm_quantized.h"
#include "autograd/ops/map.h"
#include "autograd/ops/transformer/grouped_linear.h"
#include "autograd/ops/transformer/row_groups.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

constexpr OpName kGrouped = "grouped_linear_quantized";
constexpr OpName kGroupedBackward = "grouped_linear_quantized_backward";

// Of one group.
kernels::BlockMatrix kernel_matrix(const QuantizedMatrix& matrix, const GroupEnds& ends) {
  return {matrix.format(), matrix.bytes().raw(), matrix.out() / std::ssize(ends), matrix.in()};
}

// [E, out, in]
Tensor wide_weight(const QuantizedMatrix& matrix, const GroupEnds& ends) {
  return dequantize(matrix).to(kFloat64).view({std::ssize(ends), -1, matrix.in()});
}

// The bytes are an input, so that whoever observes or lends memory sees them.
struct GroupedLinearQuantized {
  static constexpr OpName name = kGrouped;
  BlockFormat format;
  GroupEnds ends;
  SavedTensor bytes = {};
  DType bias_dtype = kFloat32;

  Tensor forward(const Tensor& x, const Tensor& bytes_, const Tensor& bias) {
    const QuantizedMatrix matrix(bytes_, format);
    if (x.requires_grad()) {
      bytes.save(bytes_);
    }
    if (bias.defined()) {
      bias_dtype = bias.dtype();
    }
    if (x.dtype() == kFloat64) {
      return grouped_linear(x, wide_weight(matrix, ends), ends,
                            bias.defined() ? bias.to(kFloat64) : bias);
    }
    const kernels::BlockMatrix one = kernel_matrix(matrix, ends);
    Tensor y = empty({x.shape()[0], one.out}, x.dtype());
    if (bias.defined()) {
      fill_groups(bias.to(x.dtype()), ends, y);
    }
    const Tensor rows = dense(x);
    kernels::grouped_gemm_quantized(x.dtype(), ends, one, rows.raw(), one.in,
                                    bias.defined() ? 1 : 0, y.raw(), one.out);
    return y;
  }

  std::array<Tensor, 3> backward(const Tensor& dy, NeedsGrad needs) const {
    std::array<Tensor, 3> out;
    if (needs[0]) {
      out[0] = grouped_linear_quantized_backward(dy, {bytes.get(), format}, ends);
    }
    if (needs[2]) {
      out[2] = sum_groups(dy.to(bias_dtype), ends);
    }
    return out;
  }
};

struct GroupedLinearQuantizedBackward {
  static constexpr OpName name = kGroupedBackward;
  BlockFormat format;
  GroupEnds ends;
  SavedTensor bytes = {};

  Tensor forward(const Tensor& dy, const Tensor& bytes_) {
    const QuantizedMatrix matrix(bytes_, format);
    if (dy.requires_grad()) {
      bytes.save(bytes_);
    }
    if (dy.dtype() == kFloat64) {
      return grouped_linear(dy, wide_weight(matrix, ends).t(), ends);
    }
    const kernels::BlockMatrix one = kernel_matrix(matrix, ends);
    Tensor dx = empty({dy.shape()[0], one.in}, dy.dtype());
    const Tensor rows = dense(dy);
    kernels::grouped_gemm_quantized_backward(dy.dtype(), ends, one, rows.raw(), one.out, dx.raw(),
                                             one.in);
    return dx;
  }
  std::array<Tensor, 2> backward(const Tensor& ddx, NeedsGrad /*needs*/) const {
    return {grouped_linear_quantized(ddx, {bytes.get(), format}, ends), Tensor()};
  }
};

// x has the matrix' columns, or else its rows.
void check_operands(std::string_view name,
                    const Tensor& x,
                    const QuantizedMatrix& matrix,
                    const GroupEnds& ends,
                    bool of_columns) {
  check<ValueError>(matrix.defined(), name, ": the matrix is undefined");
  check<TypeError>(is_floating(x.dtype()), name, ": x must be floating, it is ",
                   name_of(x.dtype()));
  check<ValueError>(!ends.empty() && matrix.out() % std::ssize(ends) == 0, name, ": the matrix [",
                    matrix.out(), ", ", matrix.in(), "] cannot be those of ", ends.size(),
                    " groups");
  const int64_t width = of_columns ? matrix.in() : matrix.out() / std::ssize(ends);
  check<ValueError>(x.dim() == 2 && x.shape()[1] == width, name, ": x must be [rows, ", width,
                    "] for ", ends.size(), " matrices in [", matrix.out(), ", ", matrix.in(),
                    "], it is ", x.shape());
  check_group_ends(name, ends, std::ssize(ends), x.shape()[0]);
}

}  // namespace

Tensor grouped_linear_quantized(const Tensor& x,
                                const QuantizedMatrix& matrix,
                                const std::vector<int64_t>& ends,
                                const Tensor& bias) {
  check_defined(kGrouped, x, "x");
  check_operands(kGrouped, x, matrix, ends, /*of_columns=*/true);
  if (bias.defined()) {
    check<TypeError>(bias.dtype() == x.dtype() || bias.dtype() == kFloat32, kGrouped,
                     ": bias must be ", name_of(x.dtype()), " or float32, it is ",
                     name_of(bias.dtype()));
    const Shape expected{std::ssize(ends), matrix.out() / std::ssize(ends)};
    check<ValueError>(bias.shape() == expected, kGrouped, ": bias ", bias.shape(),
                      " must be [groups, out], ", expected);
  }
  return apply_op(GroupedLinearQuantized{matrix.format(), ends}, x, matrix.bytes(), bias);
}

Tensor grouped_linear_quantized_backward(const Tensor& dy,
                                         const QuantizedMatrix& matrix,
                                         const std::vector<int64_t>& ends) {
  check_defined(kGroupedBackward, dy, "dy");
  check_operands(kGroupedBackward, dy, matrix, ends, /*of_columns=*/false);
  return apply_op(GroupedLinearQuantizedBackward{matrix.format(), ends}, dy, matrix.bytes());
}

}  // namespace tapestry

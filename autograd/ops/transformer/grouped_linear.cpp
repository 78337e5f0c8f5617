#include "autograd/ops/transformer/grouped_linear.h"

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "autograd/kernels/gemm/gemm_grouped.h"
#include "autograd/ops/blas_matrix.h"
#include "autograd/ops/map.h"
#include "autograd/ops/transformer/row_groups.h"
#include "autograd/tape/main_grad.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

using kernels::GroupAxis;

using Ends = GroupEnds;

// out[rows of e] = x[rows of e] weight[e]^T + beta out; out is contiguous.
void multiply_rows(
    const Tensor& x_, const Tensor& weight_, const Ends& ends, double beta, const Tensor& out) {
  const Tensor x_layout = blas_layout(x_);
  const Tensor weight_layout = blas_layout(weight_);
  const BlasMatrix x = as_blas_matrix(x_layout, {});
  const BlasMatrix weight = as_blas_matrix(weight_layout, {weight_.shape()[0]});
  kernels::grouped_gemm({.dtype = x_.dtype(),
                         .c_dtype = out.dtype(),
                         .trans_a = x.transposed,
                         .trans_b = !weight.transposed,
                         .m = x.rows,
                         .n = weight.rows,
                         .k = x.columns,
                         .lda = x.leading,
                         .ldb = weight.leading,
                         .stride_b = weight.batch[0],
                         .beta = beta,
                         .ldc = weight.rows},
                        GroupAxis::kRows, ends, x.data, weight.data, out.raw());
}

// out[e] = dy[rows of e]^T x[rows of e] + beta out[e]; out [E, out, in] is contiguous.
void multiply_groups(
    const Tensor& dy_, const Tensor& x_, const Ends& ends, double beta, const Tensor& out) {
  const Tensor dy_layout = blas_layout(dy_);
  const Tensor x_layout = blas_layout(x_);
  const BlasMatrix dy = as_blas_matrix(dy_layout, {});
  const BlasMatrix x = as_blas_matrix(x_layout, {});
  kernels::grouped_gemm({.dtype = dy_.dtype(),
                         .c_dtype = out.dtype(),
                         .trans_a = !dy.transposed,
                         .trans_b = x.transposed,
                         .m = dy.columns,
                         .n = x.columns,
                         .k = x.rows,
                         .lda = dy.leading,
                         .ldb = x.leading,
                         .beta = beta,
                         .ldc = x.columns,
                         .stride_c = dy.columns * x.columns},
                        GroupAxis::kSum, ends, dy.data, x.data, out.raw());
}

Tensor weight_product(const Tensor& dy, const Tensor& x, const Ends& ends);

struct GroupedLinear {
  static constexpr OpName name = "grouped_linear";
  Ends ends;
  Tensor rounded;  // the weight in x's dtype, where that differs
  SavedTensor x = {}, weight = {};
  Tensor leaf = {};  // the weight itself, whose main_grad may take the gradient
  DType bias_dtype = kFloat32;

  void for_float64() { rounded = {}; }
  Tensor forward(const Tensor& x_, const Tensor& weight_, const Tensor& bias) {
    if (weight_.requires_grad()) {
      leaf = weight_;
      x.save(x_);
    }
    if (x_.requires_grad()) {
      weight.save(weight_);
    }
    if (weight_.dtype() != x_.dtype() && !rounded.defined()) {
      rounded = weight_.to(x_.dtype());
    }
    Tensor y = empty({x_.shape()[0], weight_.shape()[1]}, x_.dtype());
    if (bias.defined()) {
      // The product is added to the bias inside the kernel, rounded once.
      bias_dtype = bias.dtype();
      const Tensor start = bias.dtype() == x_.dtype() ? dense(bias) : bias.to(x_.dtype());
      start.raw();  // all ranks open it, with rows or without
      fill_groups(start, ends, y);
    }
    multiply_rows(x_, rounded.defined() ? rounded : weight_, ends, bias.defined() ? 1 : 0, y);
    return y;
  }

  std::array<Tensor, 3> backward(const Tensor& dy, NeedsGrad needs) const {
    std::array<Tensor, 3> out;
    if (needs[0]) {
      const Tensor saved = weight;  // notices a change in place
      // The copy is not part of the graph; second derivatives need the weight itself.
      const bool copy = rounded.defined() && !grad_enabled();
      out[0] = apply_op(GroupedLinear{ends, Tensor()}, dy,
                        (copy ? rounded : saved.to(dy.dtype())).t(), Tensor());
    }
    if (needs[1]) {
      out[1] = weight_gradient(dy);
    }
    if (needs[2]) {
      out[2] = sum_groups(dy.to(bias_dtype), ends);
    }
    return out;
  }

 private:
  Tensor weight_gradient(const Tensor& dy) const {
    const Tensor rows = x;
    if (dy.dtype() != kFloat64) {
      // The products whose results only accumulate: main_grad is their C.
      const MainGradTarget target = main_grad_target(leaf);
      if (target.buffer.defined()) {
        multiply_groups(dy, rows, ends, target.overwrite ? 0 : 1, target.buffer);
        return target.buffer;
      }
    }
    if (size_of(dy.dtype()) == 2 && !grad_enabled()) {
      const Tensor sums = empty(leaf.shape(), kFloat32);
      multiply_groups(dy, rows, ends, 0, sums);
      const Tensor added = add_to_main_grad(leaf, sums);  // not rounded to the leaf's dtype
      return added.defined() ? added : sums.to(leaf.dtype());
    }
    return weight_product(dy, rows, ends).to(leaf.dtype());
  }
};

// dy[rows of e]^T x[rows of e] for each group e.
struct GroupedLinearWeight {
  static constexpr OpName name = "grouped_linear_weight";
  Ends ends;
  SavedTensor dy = {}, x = {};
  Tensor forward(const Tensor& dy_, const Tensor& x_) {
    if (x_.requires_grad()) {
      dy.save(dy_);
    }
    if (dy_.requires_grad()) {
      x.save(x_);
    }
    const auto groups = static_cast<int64_t>(ends.size());
    Tensor dweight = empty({groups, dy_.shape()[1], x_.shape()[1]}, dy_.dtype());
    multiply_groups(dy_, x_, ends, 0, dweight);
    return dweight;
  }
  std::array<Tensor, 2> backward(const Tensor& ddweight, NeedsGrad needs) const {
    std::array<Tensor, 2> out;
    if (needs[0]) {
      out[0] = apply_op(GroupedLinear{ends, Tensor()}, x.get(), ddweight, Tensor());
    }
    if (needs[1]) {
      out[1] = apply_op(GroupedLinear{ends, Tensor()}, dy.get(), ddweight.t(), Tensor());
    }
    return out;
  }
};

Tensor weight_product(const Tensor& dy, const Tensor& x, const Ends& ends) {
  return apply_op(GroupedLinearWeight{ends}, dy, x);
}

}  // namespace

Tensor grouped_linear(const Tensor& x,
                      const Tensor& weight,
                      const std::vector<int64_t>& ends,
                      const Tensor& bias,
                      const Tensor& rounded) {
  check_defined("grouped_linear", x, "x", weight, "weight");
  const bool narrow = size_of(x.dtype()) == 2 && is_floating(x.dtype());
  const bool mixed = narrow && weight.dtype() == kFloat32;
  check_floating("grouped_linear", x.dtype());
  check<TypeError>(mixed || weight.dtype() == x.dtype(), "grouped_linear: dtypes differ: x ",
                   name_of(x.dtype()), ", weight ", name_of(weight.dtype()),
                   "; convert one of them with to()");
  check<ValueError>(weight.dim() == 3, "grouped_linear: weight must be [groups, out, in], it is ",
                    weight.shape());
  check<ValueError>(x.dim() == 2 && x.shape()[1] == weight.shape()[2],
                    "grouped_linear: x must be [rows, in] with the last axis of weight ",
                    weight.shape(), ", it is ", x.shape());
  check_group_ends("grouped_linear", ends, weight.shape()[0], x.shape()[0]);
  if (bias.defined()) {
    check<TypeError>(bias.dtype() == x.dtype() || (narrow && bias.dtype() == kFloat32),
                     "grouped_linear: dtypes differ: x ", name_of(x.dtype()), ", bias ",
                     name_of(bias.dtype()));
    check<ValueError>(bias.shape() == (Shape{weight.shape()[0], weight.shape()[1]}),
                      "grouped_linear: bias ", bias.shape(), " must be [groups, out] of weight ",
                      weight.shape());
  }
  if (rounded.defined()) {
    check<TypeError>(mixed && rounded.dtype() == x.dtype(),
                     "grouped_linear: the rounded weight is ", describe(rounded),
                     "; it stands for a float32 weight in the dtype of x, ", name_of(x.dtype()),
                     ", and the weight is ", describe(weight));
    check<ValueError>(rounded.shape() == weight.shape(), "grouped_linear: the rounded weight ",
                      rounded.shape(), " must have the shape of weight ", weight.shape());
  }
  return apply_op(GroupedLinear{ends, rounded}, x, weight, bias);
}

}  // namespace tapestry

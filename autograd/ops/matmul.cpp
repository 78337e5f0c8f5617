#include "autograd/ops/matmul.h"

#include <algorithm>

#include "autograd/kernels/exact/exact_sums.h"
#include "autograd/kernels/gemm/gemm.h"
#include "autograd/ops/blas_matrix.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/linear_gradients.h"
#include "autograd/ops/map.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/main_grad.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

// Whether the rows of the `count` matrices along batch axis `axis` follow one another as those of
// one tall matrix.
bool stacks(const BlasMatrix& m, int64_t axis, int64_t count) {
  if (m.transposed) {
    return m.batch[axis] == m.rows && m.leading >= m.rows * count;
  }
  return m.rows == 1 ? m.batch[axis] >= std::max<int64_t>(1, m.columns)
                     : m.batch[axis] == m.rows * m.leading;
}

// out = a b + beta out over the batch; out is contiguous with shape batch + [m, n], of the
// operands' dtype or, for 16-bit operands, float32.
void multiply(const Tensor& a_, const Tensor& b_, double beta, const Tensor& out) {
  if (out.numel() == 0) {
    return;
  }
  const Tensor a_layout = blas_layout(a_);
  const Tensor b_layout = blas_layout(b_);
  Shape batch = out.shape();
  batch.pop_back();
  batch.pop_back();
  BlasMatrix a = as_blas_matrix(a_layout, batch);
  BlasMatrix b = as_blas_matrix(b_layout, batch);
  BlasMatrix c = as_blas_matrix(out, batch);
  c.leading = out.size(-1);
  c.transposed = false;
  c.batch = contiguous_strides(batch);
  for (int64_t& stride : c.batch) {
    stride *= c.rows * c.columns;
  }

  // Neighbouring batch axes that all three step through evenly are one axis.
  for (int64_t i = batch.size() - 1; i >= 0; --i) {
    const auto drop = [&](int64_t axis) {
      batch.erase(axis);
      for (BlasMatrix* m : {&a, &b, &c}) {
        m->batch.erase(axis);
      }
    };
    if (batch[i] == 1) {
      drop(i);
    } else if (i + 1 < batch.size()) {
      const auto even = [&](const BlasMatrix& m) {
        return m.batch[i] == batch[i + 1] * m.batch[i + 1];
      };
      if (even(a) && even(b) && even(c)) {
        for (BlasMatrix* m : {&a, &b, &c}) {
          m->batch[i] = m->batch[i + 1];
        }
        batch[i] *= batch[i + 1];
        drop(i + 1);
      }
    }
  }
  // One b for the whole last axis: its a's make one tall matrix.
  while (!batch.empty() && b.batch.back() == 0 && stacks(a, batch.size() - 1, batch.back()) &&
         stacks(c, batch.size() - 1, batch.back())) {
    for (BlasMatrix* m : {&a, &c}) {
      if (m->rows == 1 && !m->transposed) {
        m->leading = m->batch.back();
      }
      m->rows *= batch.back();
      m->batch.pop_back();
    }
    b.batch.pop_back();
    batch.pop_back();
  }

  // The largest remaining axis goes to the kernel, the others are counted here.
  const int64_t inner = std::distance(batch.begin(), std::max_element(batch.begin(), batch.end()));
  const bool batched = !batch.empty();
  const int64_t count = batched ? batch[inner] : 1;
  const DType dtype = a_.dtype();
  Shape place = Shape::filled(batch.size(), 0);
  const int64_t rounds = batched ? batch.numel() / count : 1;
  for (int64_t round = 0; round < rounds; ++round) {
    const auto at = [&](const BlasMatrix& m, DType item) {
      int64_t offset = 0;
      for (int64_t i = 0; i < batch.size(); ++i) {
        offset += place[i] * m.batch[i];
      }
      return m.data + offset * size_of(item);
    };
    auto* to = const_cast<std::byte*>(at(c, out.dtype()));
    kernels::gemm({.dtype = dtype,
                   .c_dtype = out.dtype(),
                   .trans_a = a.transposed,
                   .trans_b = b.transposed,
                   .batch = count,
                   .m = c.rows,
                   .n = c.columns,
                   .k = a.columns,
                   .lda = a.leading,
                   .stride_a = batched ? a.batch[inner] : 0,
                   .ldb = b.leading,
                   .stride_b = batched ? b.batch[inner] : 0,
                   .beta = beta,
                   .ldc = c.leading,
                   .stride_c = batched ? c.batch[inner] : 0},
                  at(a, dtype), at(b, dtype), to);
    for (int64_t i = batch.size() - 1; i >= 0; --i) {
      if (i == inner) {
        continue;
      }
      if (++place[i] < batch[i]) {
        break;
      }
      place[i] = 0;
    }
  }
}

void check_operands(std::string_view op, const Tensor& a, const Tensor& b) {
  check<TypeError>(a.dtype() == b.dtype(), op, ": dtypes differ: ", name_of(a.dtype()), " and ",
                   name_of(b.dtype()), "; convert one of them with to()");
  check<TypeError>(a.dtype() != kBool, op, ": not defined for bool; convert with to(kInt64)");
}

// [.., rows, columns] with everything before the last axis in one.
Tensor fold(const Tensor& x) {
  const int64_t width = x.shape().back();
  Shape leading = x.shape();
  leading.pop_back();
  return x.reshape({leading.numel(), width});
}

// a and b have at least two axes.
struct MatMul {
  static constexpr OpName name = "matmul";
  SavedTensor a, b;
  Shape a_shape, b_shape;
  Tensor forward(const Tensor& a_, const Tensor& b_) {
    a_shape = a_.shape();
    b_shape = b_.shape();
    // Each is needed only for the other's gradient.
    if (b_.requires_grad()) {
      a.save(a_);
    }
    if (a_.requires_grad()) {
      b.save(b_);
    }
    Shape shape = broadcast_shapes(name, leading_axes(a_shape), leading_axes(b_shape));
    shape.push_back(a_.size(-2));
    shape.push_back(b_.size(-1));
    Tensor y = empty(shape, a_.dtype());
    multiply(a_, b_, 0, y);
    return y;
  }
  std::array<Tensor, 2> backward(const Tensor& dy, NeedsGrad needs) const {
    std::array<Tensor, 2> out;
    if (needs[0]) {
      out[0] = sum_to(matmul(dy, b.get().t()), a_shape);
    }
    if (needs[1]) {
      // One b for many a's: the sum over the batch is part of one product.
      out[1] = b_shape.size() == 2 ? matmul(fold(a.get()).t(), fold(dy))
                                   : sum_to(matmul(a.get().t(), dy), b_shape);
    }
    return out;
  }

 private:
  static Shape leading_axes(Shape shape) {
    shape.pop_back();
    shape.pop_back();
    return shape;
  }
};

// dx of exact mode, in the given dtype.
Tensor tree_input_gradient(const Tensor& dy,
                           const Tensor& weight,
                           const Tensor& rounded,
                           std::span<const kernels::SumRun> outputs,
                           DType dtype) {
  check<RuntimeError>(!grad_enabled(),
                      "linear: exact mode has no derivatives of derivatives (create_graph)");
  Shape shape = dy.shape();
  shape.back() = weight.size(1);
  Tensor dx = empty(shape, dtype);
  tree_product(dy, rounded.defined() ? rounded : weight.to(dy.dtype()), outputs, dx);
  return dx;
}

struct Linear {
  static constexpr OpName name = "linear";
  Tensor rounded;                       // the weight in x's dtype, where that differs
  std::function<Tensor()> recompute_x;  // in place of a saved x
  LinearSums sums;
  SavedTensor x = {}, weight = {};
  Tensor leaf = {};  // the weight itself, whose main_grad may take the gradient
  Tensor bias_leaf = {};
  Shape x_shape = {};
  DType bias_dtype = kFloat32;

  void for_float64() {
    rounded = {};
    recompute_x = nullptr;
  }
  Tensor forward(const Tensor& x_, const Tensor& weight_, const Tensor& bias) {
    if (weight_.requires_grad()) {
      leaf = weight_;
      x_shape = x_.shape();
      if (recompute_x == nullptr) {
        x.save(x_);
      }
    }
    if (x_.requires_grad()) {
      weight.save(weight_);
    }
    if (weight_.dtype() != x_.dtype() && !rounded.defined()) {
      rounded = weight_.to(x_.dtype());
    }
    Shape shape = x_.shape();
    shape.back() = weight_.shape()[0];
    Tensor y = empty(shape, x_.dtype());
    if (bias.defined()) {
      // The product is added to the bias inside the kernel, rounded once.
      bias_dtype = bias.dtype();
      bias_leaf = bias.requires_grad() ? bias : Tensor();
      copy_values(broadcast_view(bias.dtype() == x_.dtype() ? bias : bias.to(x_.dtype()), shape),
                  y);
    }
    const Tensor matrix = (rounded.defined() ? rounded : weight_).t();
    const double beta = bias.defined() ? 1 : 0;
    if (sums_by_runs(sums.inputs, x_.dtype())) {
      tree_product(x_, matrix, sums.inputs, y, beta);
      return y;
    }
    const bool vector = x_.dim() == 1;
    multiply(vector ? x_.unsqueeze(0) : x_, matrix, beta, vector ? y.unsqueeze(0) : y);
    return y;
  }

  std::array<Tensor, 3> backward(const Tensor& dy, NeedsGrad needs) const {
    std::array<Tensor, 3> out;
    if (needs[0]) {
      out[0] = linear_input_gradient(dy, weight, rounded, sums.outputs);  // notices a change
    }
    if (needs[1]) {
      out[1] = linear_weight_gradient(dy, input(dy.dtype()), leaf, sums.tokens_apart);
    }
    if (needs[2]) {
      out[2] = linear_bias_gradient(dy, bias_leaf, bias_dtype);
    }
    return out;
  }

 private:
  Tensor input(DType dtype) const {
    if (recompute_x == nullptr) {
      return x;
    }
    Tensor again = recompute_x();
    check<ValueError>(again.defined() && again.shape() == x_shape && again.dtype() == dtype,
                      "linear: recompute_x gave ", describe(again), " for x, which was ",
                      name_of(dtype), " ", x_shape);
    return again;
  }
};

}  // namespace

Tensor linear_input_gradient(const Tensor& dy,
                             const Tensor& weight,
                             const Tensor& rounded,
                             std::span<const kernels::SumRun> outputs) {
  if (sums_by_runs(outputs, dy.dtype())) {
    return tree_input_gradient(dy, weight, rounded, outputs, dy.dtype());
  }
  // The copy is not part of the graph; second derivatives need the weight itself.
  const bool copy = rounded.defined() && !grad_enabled();
  return matmul(dy, copy ? rounded : weight.to(dy.dtype()));
}

Tensor linear_input_gradient_part(const Tensor& dy,
                                  const Tensor& weight,
                                  const Tensor& rounded,
                                  std::span<const kernels::SumRun> outputs) {
  return tree_input_gradient(dy, weight, rounded, outputs, kFloat32);
}

Tensor linear_bias_gradient(const Tensor& dy, const Tensor& leaf, DType dtype) {
  if (const Tensor sums = exact_main_grad(leaf); sums.defined()) {
    const Tensor rows = dense(fold(dy));
    kernels::add_columns_to_exact(rows.dtype(), rows.size(0), rows.size(1), rows.raw(),
                                  rows.size(1), sums.data<double>());
    return sums;
  }
  return sum(fold(dy).to(dtype), {0});
}

Tensor linear_weight_gradient(const Tensor& dy,
                              const Tensor& x,
                              const Tensor& leaf,
                              bool tokens_apart) {
  const Tensor rows = fold(dy);
  const Tensor columns = fold(x);
  if (const Tensor sums = exact_main_grad(leaf); sums.defined()) {
    add_exact_products(rows, columns, sums, tokens_apart);
    return sums;
  }
  // The one product whose result only accumulates: main_grad is the C of this GEMM.
  const MainGradTarget target = main_grad_target(leaf);
  if (target.buffer.defined()) {
    multiply(rows.t(), columns, target.overwrite ? 0 : 1, target.buffer);
    return target.buffer;
  }
  if (size_of(rows.dtype()) == 2 && !grad_enabled()) {
    const Tensor sums = empty(leaf.shape(), kFloat32);
    multiply(rows.t(), columns, 0, sums);
    const Tensor added = add_to_main_grad(leaf, sums);  // not rounded to the leaf's dtype
    return added.defined() ? added : sums.to(leaf.dtype());
  }
  return matmul(rows.t(), columns).to(leaf.dtype());
}

Tensor matmul(const Tensor& a, const Tensor& b) {
  check_defined("matmul", a, "a", b, "b");
  check_operands("matmul", a, b);
  check<ValueError>(a.dim() > 0 && b.dim() > 0, "matmul: operands must have axes: a ", a.shape(),
                    ", b ", b.shape(), "; use mul() for scalars");
  const int64_t inner = b.dim() == 1 ? b.shape()[0] : b.size(-2);
  check<ValueError>(a.shape().back() == inner, "matmul: inner sizes differ: a ", a.shape(), ", b ",
                    b.shape());
  const bool row = a.dim() == 1;
  const bool column = b.dim() == 1;
  Tensor y = apply_op(MatMul{}, row ? unsqueeze(a, 0) : a, column ? unsqueeze(b, 1) : b);
  if (!row && !column) {
    return y;
  }
  Shape shape = y.shape();
  if (column) {
    shape.pop_back();
  }
  if (row) {
    shape.erase(shape.size() - (column ? 1 : 2));
  }
  return y.reshape(shape);
}

Tensor bmm(const Tensor& a, const Tensor& b) {
  check_defined("bmm", a, "a", b, "b");
  check_operands("bmm", a, b);
  check<ValueError>(
      a.dim() == 3 && b.dim() == 3 && a.shape()[0] == b.shape()[0] && a.shape()[2] == b.shape()[1],
      "bmm: needs [batch, m, k] and [batch, k, n], got a ", a.shape(), ", b ", b.shape());
  return matmul(a, b);
}

Tensor dot(const Tensor& a, const Tensor& b) {
  check_defined("dot", a, "a", b, "b");
  check<ValueError>(a.dim() == 1 && b.dim() == 1 && a.shape() == b.shape(),
                    "dot: needs two vectors of one length, got a ", a.shape(), ", b ", b.shape());
  return matmul(a, b);
}

Tensor outer(const Tensor& a, const Tensor& b) {
  check_defined("outer", a, "a", b, "b");
  check<ValueError>(a.dim() == 1 && b.dim() == 1, "outer: needs two vectors, got a ", a.shape(),
                    ", b ", b.shape());
  return mul(unsqueeze(a, 1), unsqueeze(b, 0));
}

Tensor linear(const Tensor& x,
              const Tensor& weight,
              const Tensor& bias,
              const Tensor& rounded,
              std::function<Tensor()> recompute_x,
              const LinearSums& sums) {
  check_defined("linear", x, "x", weight, "weight");
  const bool narrow = x.dtype() == kBFloat16 || x.dtype() == kFloat16;
  const bool mixed = narrow && weight.dtype() == kFloat32;
  if (!mixed) {
    check_operands("linear", x, weight);
  }
  if (weight.dim() == 1) {
    check<ValueError>(!bias.defined() || bias.dim() == 0, "linear: a weight of one axis, ",
                      weight.shape(), ", takes a bias without axes, got ", describe(bias));
    const auto row = [](const Tensor& t) { return t.defined() ? unsqueeze(t, 0) : t; };
    return squeeze(linear(x, row(weight), row(bias), row(rounded), std::move(recompute_x), sums),
                   -1);
  }
  check<ValueError>(weight.dim() == 2, "linear: weight must be [out, in] or [in], it is ",
                    weight.shape());
  check<ValueError>(x.dim() > 0 && x.shape().back() == weight.shape()[1],
                    "linear: the last axis of x ", x.shape(), " must be that of weight ",
                    weight.shape());
  if (bias.defined()) {
    if (!narrow || bias.dtype() != kFloat32) {
      check_operands("linear", weight, bias);
    }
    check<ValueError>(bias.shape() == Shape{weight.shape()[0]}, "linear: bias ", bias.shape(),
                      " must have one entry per row of weight ", weight.shape());
  }
  if (rounded.defined()) {
    check<TypeError>(mixed && rounded.dtype() == x.dtype(), "linear: the rounded weight is ",
                     describe(rounded), "; it stands for a float32 weight in the dtype of x, ",
                     name_of(x.dtype()), ", and the weight is ", describe(weight));
    check<ValueError>(rounded.shape() == weight.shape(), "linear: the rounded weight ",
                      rounded.shape(), " must have the shape of weight ", weight.shape());
  }
  return apply_op(Linear{rounded, std::move(recompute_x), sums}, x, weight, bias);
}

}  // namespace tapestry

#include "parallel_core/transformer/moe/expert_product.h"

#include <algorithm>
#include <array>
#include <span>

#include "autograd/kernels/exact/exact_sums.h"
#include "autograd/kernels/gemm/gemm_exact.h"
#include "autograd/kernels/gemm/gemm_grouped.h"
#include "autograd/ops/exact_runs.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/map.h"
#include "autograd/ops/transformer/row_groups.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/transformer/moe/exact_gradient.h"

namespace tapestry {

namespace {

using kernels::GroupAxis;

Tensor dense_in(const Tensor& x, DType dtype) {
  return dense(x.dtype() == dtype ? x : x.to(dtype));
}

// c[rows of e] = a[rows of e] b_e, where a sum is a tree of `runs`: a [R, k], c [R, n], b_e
// [k, n] or, transposed, [n, k].
void multiply_rows_of_experts(const Tensor& a,
                              const Tensor& b,
                              bool trans_b,
                              const GroupEnds& ends,
                              std::span<const kernels::SumRun> runs,
                              const Tensor& c) {
  kernels::GemmShape shape = {.dtype = a.dtype(),
                              .c_dtype = c.dtype(),
                              .trans_b = trans_b,
                              .m = a.size(0),
                              .n = c.size(1),
                              .k = a.size(1),
                              .lda = a.size(1),
                              .ldb = b.size(2),
                              .stride_b = b.size(1) * b.size(2),
                              .ldc = c.size(1)};
  const auto* weights = static_cast<const std::byte*>(b.raw());  // also without rows
  if (a.size(0) == 0) {
    return;
  }
  if (runs.size() == 1) {
    return kernels::grouped_gemm(shape, GroupAxis::kRows, ends, a.raw(), weights, c.raw());
  }
  int64_t begin = 0;
  for (size_t e = 0; e < ends.size(); ++e) {
    shape.m = ends[e] - begin;
    if (shape.m > 0) {
      kernels::tree_gemm(
          shape, runs,
          static_cast<const std::byte*>(a.raw()) + begin * shape.lda * size_of(a.dtype()),
          weights + static_cast<int64_t>(e) * shape.stride_b * size_of(b.dtype()),
          static_cast<std::byte*>(c.raw()) + begin * shape.ldc * size_of(c.dtype()));
    }
    begin = ends[e];
  }
}

// The leaves of rows [begin, end), counted from `begin`.
std::vector<kernels::SumRun> leaves_within(const ExpertRows& rows, int64_t begin, int64_t end) {
  std::vector<kernels::SumRun> out;
  if (rows.leaf_ends.empty()) {
    for (int64_t row = 0; row < end - begin; ++row) {
      out.push_back({.begin = row, .end = row + 1});
    }
    return out;
  }
  auto leaf = std::upper_bound(rows.leaf_ends.begin(), rows.leaf_ends.end(), begin);
  for (int64_t from = begin; from < end; from = *leaf++) {
    out.push_back({.begin = from - begin, .end = *leaf - begin});
  }
  return out;
}

// sums[e] += dy[rows of e]^T x[rows of e], each leaf a term.
void add_exact_weight_gradients(const Tensor& dy,
                                const Tensor& x,
                                const ExpertRows& rows,
                                const Tensor& sums) {
  kernels::GemmShape shape = {.dtype = x.dtype(),
                              .c_dtype = kFloat32,
                              .trans_a = true,
                              .m = dy.size(1),
                              .n = x.size(1),
                              .lda = dy.size(1),
                              .ldb = x.size(1),
                              .ldc = x.size(1)};
  auto* out = sums.data<double>();
  int64_t begin = 0;
  for (size_t e = 0; e < rows.ends.size(); ++e) {
    const int64_t end = rows.ends[e];
    shape.k = end - begin;
    if (shape.k > 0) {
      kernels::exact_sum_gemm(
          shape, leaves_within(rows, begin, end),
          static_cast<const std::byte*>(dy.raw()) + begin * shape.lda * size_of(dy.dtype()),
          static_cast<const std::byte*>(x.raw()) + begin * shape.ldb * size_of(x.dtype()),
          out + static_cast<int64_t>(e) * shape.m * shape.n);
    }
    begin = end;
  }
}

struct ExpertProduct {
  static constexpr OpName name = "expert_product";
  ExpertRows rows;
  ExpertSums sums;
  Tensor rounded;  // the weight in the compute dtype, where it has another
  SavedTensor x = {}, weight = {};
  Tensor leaf = {};  // the weight itself, whose main_grad takes the gradient
  DType x_dtype = kFloat32;

  Tensor forward(const Tensor& x_, const Tensor& weight_) {
    x_dtype = x_.dtype();
    const Tensor factor = dense_in(x_, sums.compute);
    if (weight_.requires_grad()) {
      leaf = weight_;
      x.save(factor);
    }
    if (x_.requires_grad()) {
      weight.save(weight_);
    }
    if (weight_.dtype() != sums.compute && !rounded.defined()) {
      rounded = weight_.to(sums.compute);
    }
    Tensor y = empty({x_.size(0), weight_.size(1)}, sums.parts ? kFloat32 : sums.compute);
    multiply_rows_of_experts(factor, dense(rounded.defined() ? rounded : weight_),
                             /*trans_b=*/true, rows.ends,
                             tree_runs(weight_.size(2), sums.in_leaves), y);
    return y;
  }

  std::array<Tensor, 2> backward(const Tensor& dy_, NeedsGrad needs) const {
    check<RuntimeError>(!grad_enabled(), name, ": exact mode has no gradients of gradients");
    const Tensor dy = dense_in(dy_, sums.compute);
    std::array<Tensor, 2> out;
    if (needs[0]) {
      const Tensor saved = weight;  // notices a change in place
      out[0] = empty({dy.size(0), saved.size(2)}, x_dtype);
      multiply_rows_of_experts(
          dy, dense(rounded.defined() ? rounded : saved), /*trans_b=*/false, rows.ends,
          tree_runs_of_pieces(saved.size(1), sums.out_pieces, sums.out_leaves), out[0]);
    }
    if (needs[1]) {
      out[1] = exact_gradient(
          leaf, [&](const Tensor& exact) { add_exact_weight_gradients(dy, x.get(), rows, exact); });
    }
    return out;
  }
};

struct AddExpertBias {
  static constexpr OpName name = "add_expert_bias";
  std::vector<int64_t> expert_of_row;
  Tensor leaf = {};

  Tensor forward(const Tensor& x, const Tensor& bias) {
    if (bias.requires_grad()) {
      leaf = bias;
    }
    bias.raw();  // also without rows
    const Tensor index = tensor(expert_of_row, {std::ssize(expert_of_row)});
    return (x + index_select(bias, 0, index).to(x.dtype())).to(x.dtype());
  }

  std::array<Tensor, 2> backward(const Tensor& dy, NeedsGrad needs) const {
    std::array<Tensor, 2> out = {needs[0] ? dy : Tensor(), Tensor()};
    if (!needs[1]) {
      return out;
    }
    check<RuntimeError>(!grad_enabled(), name, ": exact mode has no gradients of gradients");
    out[1] =
        exact_gradient(leaf, [&](const Tensor& sums) { add_rows(dense(dy), sums.data<double>()); });
    return out;
  }

 private:
  // Neighbours of one expert at once.
  void add_rows(const Tensor& dy, double* sums) const {
    const int64_t n = dy.size(1);
    const int64_t count = std::ssize(expert_of_row);
    for (int64_t begin = 0, end = 0; begin < count; begin = end) {
      const int64_t expert = expert_of_row[static_cast<size_t>(begin)];
      while (end < count && expert_of_row[static_cast<size_t>(end)] == expert) {
        ++end;
      }
      kernels::add_columns_to_exact(
          dy.dtype(), end - begin, n,
          static_cast<const std::byte*>(dy.raw()) + begin * n * size_of(dy.dtype()), n,
          sums + expert * n);
    }
  }
};

}  // namespace

Tensor expert_product(const Tensor& x,
                      const Tensor& weight,
                      const ExpertRows& rows,
                      const ExpertSums& sums,
                      const Tensor& rounded) {
  check<ValueError>(x.dim() == 2 && weight.dim() == 3 && x.size(1) == weight.size(2),
                    ExpertProduct::name, ": x ", describe(x), " and weight ", describe(weight),
                    " must be [rows, in] and [experts, out, in]");
  check_group_ends(ExpertProduct::name, rows.ends, weight.size(0), x.size(0));
  check<ValueError>(rows.leaf_ends.empty() || rows.leaf_ends.back() == x.size(0),
                    ExpertProduct::name, ": the last leaf must end at the ", x.size(0),
                    " rows of x");
  return apply_op(ExpertProduct{rows, sums, rounded}, x, weight);
}

Tensor add_expert_bias(const Tensor& x,
                       const Tensor& bias,
                       const std::vector<int64_t>& expert_of_row) {
  check<ValueError>(x.dim() == 2 && bias.dim() == 2 && x.size(1) == bias.size(1) &&
                        x.size(0) == std::ssize(expert_of_row),
                    AddExpertBias::name, ": x ", describe(x), " and bias ", describe(bias),
                    " do not fit ", expert_of_row.size(), " rows");
  return apply_op(AddExpertBias{expert_of_row}, x, bias);
}

}  // namespace tapestry

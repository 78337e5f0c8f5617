#include <array>
#include <span>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/gemm/gemm_exact.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/exact_runs.h"
#include "autograd/ops/map.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/main_grad.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/tensor_parallel/axis_collectives.h"
#include "parallel_core/tensor_parallel/low_rank_parts.h"

namespace tapestry {

namespace {

// The leaves of a sum over the rows of each part of a module, which `own` has one below the other:
// leaf i is that of each part.
std::vector<kernels::SumRun> runs_of(std::span<const LowRankPart> parts, int64_t leaves) {
  std::vector<kernels::SumRun> out;
  for (int64_t leaf = 0; leaf < leaves; ++leaf) {
    int64_t first = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const int64_t rows = parts[i].rows.total();
      out.push_back({.begin = first + leaf * rows / leaves,
                     .end = first + (leaf + 1) * rows / leaves,
                     .ends_leaf = i + 1 == parts.size()});
      first += rows;
    }
  }
  return out;
}

struct ExactAddLowRank {
  static constexpr OpName name = "exact_add_low_rank";
  LowRankParts parts;
  Tensor rounded;  // b in y's dtype, where that differs
  TensorParallelLayout layout;
  bool tokens_apart;  // of db
  SavedTensor t = {}, b = {};
  Tensor gathered = {};  // t of all tokens, where the rank has a piece
  Tensor leaf = {};

  void for_float64() { rounded = {}; }

  Tensor forward(const Tensor& y, const Tensor& t_, const Tensor& b_) {
    const bool gathers = layout.size > 1 && layout.sequence_axis;
    const Tensor all =
        gathers ? start_all_gather(t_, *layout.sequence_axis, *layout.group).wait() : t_;
    if (b_.requires_grad()) {
      leaf = b_;
      if (gathers) {
        gathered = all;
      } else {
        t.save(t_);
      }
    }
    if (t_.requires_grad()) {
      b.save(b_);
    }
    if (b_.dtype() != y.dtype() && !rounded.defined()) {
      rounded = b_.to(y.dtype());
    }
    return with_low_rank(*parts, y, all, rounded.defined() ? rounded : b_);
  }

  std::array<Tensor, 3> backward(const Tensor& dy, NeedsGrad needs) const {
    check<RuntimeError>(!grad_enabled(), name,
                        ": exact mode has no derivatives of derivatives (create_graph)");
    std::array<Tensor, 3> out;
    if (needs[0]) {
      out[0] = dy;
    }
    const Tensor rows = dense(matrix_of(dy));
    if (needs[1]) {
      out[1] = input_gradient(dy, rows);
    }
    if (needs[2]) {
      out[2] = exact_main_grad(leaf);
      check<RuntimeError>(out[2].defined(), name, ": exact mode needs exact sums for ",
                          describe(leaf));
      add_products(rows, out[2].data<double>());
    }
    return out;
  }

 private:
  int64_t columns() const { return parts->back().column + parts->back().rank; }

  Tensor input_gradient(const Tensor& dy, const Tensor& rows) const {
    const Tensor bs = dense(rounded.defined() ? rounded : b.get());
    Shape shape = dy.shape();
    shape.back() = columns();
    const Tensor dt = empty(shape, kFloat32);
    const std::span<const LowRankPart> all(*parts);
    for (size_t first = 0; first < all.size();) {
      size_t end = first + 1;
      while (end < all.size() && !all[end].is_first) {
        ++end;
      }
      const auto module = all.subspan(first, end - first);
      TensorList own;
      for (const LowRankPart& part : module) {
        own.push_back(columns_of(rows, part.rows));
      }
      const Tensor factors = dense(own.size() == 1 ? own[0] : cat(own, 1));
      kernels::tree_gemm({.dtype = dy.dtype(),
                          .c_dtype = kFloat32,
                          .m = factors.size(0),
                          .n = module[0].rank,
                          .k = factors.size(1),
                          .lda = factors.size(1),
                          .ldb = module[0].rank,
                          .ldc = columns()},
                         runs_of(module, layout.leaves / layout.size), factors.raw(),
                         element_of(bs, module[0].element), element_of(dt, module[0].column));
      first = end;
    }
    return scaled(summed(dt)).to(dy.dtype());
  }

  Tensor summed(const Tensor& partial) const {
    if (layout.size == 1) {
      return partial;
    }
    return (layout.sequence_axis
                ? start_reduce_scatter(partial, *layout.sequence_axis, *layout.group)
                : start_all_reduce(partial, *layout.group))
        .wait();
  }

  // By the modules' scales, which come after the sum over the ranks: each product is rounded.
  Tensor scaled(const Tensor& dt) const {
    TensorList out;
    for (const LowRankPart& part : *parts) {
      if (part.is_first) {
        out.push_back(dt.slice(-1, part.column, part.column + part.rank) * part.scale);
      }
    }
    return out.size() == 1 ? out[0] : cat(out, -1);
  }

  void add_products(const Tensor& rows, double* sums) const {
    const Tensor low = dense(gathered.defined() ? gathered : t.get());
    for (const LowRankPart& part : *parts) {
      const bool lies_apart = part.rows.count > 1;
      const Tensor own = lies_apart ? dense(columns_of(rows, part.rows)) : rows;
      exact_token_gemm({.dtype = rows.dtype(),
                        .m = part.rows.total(),
                        .n = part.rank,
                        .k = rows.size(0),
                        .alpha = part.scale,
                        .lda = own.size(1),
                        .ldb = columns(),
                        .ldc = part.rank},
                       element_of(own, lies_apart ? 0 : part.rows.first),
                       element_of(low, part.column), sums + part.element, tokens_apart);
    }
  }
};

}  // namespace

Tensor exact_add_low_rank(const Tensor& y,
                          const Tensor& t,
                          const Tensor& b,
                          const Tensor& rounded,
                          const std::vector<LowRankModule>& modules,
                          const TensorParallelLayout& layout,
                          bool tokens_apart) {
  return apply_op(ExactAddLowRank{low_rank_parts(modules), rounded, layout, tokens_apart}, y, t, b);
}

}  // namespace tapestry

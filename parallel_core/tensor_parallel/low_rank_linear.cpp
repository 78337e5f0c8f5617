#include "parallel_core/tensor_parallel/low_rank_linear.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/ops/linear_gradients.h"
#include "autograd/ops/map.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/main_grad.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/tensor_parallel/low_rank_parts.h"

namespace tapestry {

namespace {

// Neighbouring columns of x A^T with one scale.
struct ScaledColumns {
  int64_t first = 0;
  int64_t count = 0;
  double scale = 1;
};

// How the products of a layer are cut.
struct LowRankPlan {
  std::vector<LowRankModule> modules;  // without names and start values
  LowRankParts parts;
  std::vector<ScaledColumns> columns;
  int64_t ranks = 0;
  // Each part's rows are a product of their own, with its B as it lies. Otherwise all rows are one,
  // with the Bs in one matrix [out, ranks] that is zero where a row has none of the columns.
  bool by_parts = false;
};

// A part of fewer rows has little to win by a product of its own.
constexpr int64_t kLeastRowsOfPart = 1024;

// One after the other, from the first row to the last.
bool fill_rows(const std::vector<LowRankPart>& parts, int64_t rows) {
  int64_t next = 0;
  for (const LowRankPart& part : parts) {
    if (part.rows.count != 1 || part.rows.first != next || !part.is_first) {
      return false;
    }
    next += part.rows.rows;
  }
  return next == rows;
}

std::shared_ptr<const LowRankPlan> plan_of(const std::vector<LowRankModule>& modules,
                                           int64_t rows) {
  LowRankPlan out;
  out.parts = low_rank_parts(modules);
  for (const LowRankModule& module : modules) {
    LowRankModule bare{.rank = module.rank, .scale = module.scale};
    for (const LowRankModule::Output& output : module.outputs) {
      bare.outputs.push_back({.rows = output.rows});
    }
    out.modules.push_back(std::move(bare));
    if (!out.columns.empty() && out.columns.back().scale == module.scale) {
      out.columns.back().count += module.rank;
    } else {
      out.columns.push_back({out.ranks, module.rank, module.scale});
    }
    out.ranks += module.rank;
  }
  out.by_parts = fill_rows(*out.parts, rows) &&
                 (out.parts->size() == 1 ||
                  std::all_of(out.parts->begin(), out.parts->end(), [](const LowRankPart& part) {
                    return part.rows.rows >= kLeastRowsOfPart;
                  }));
  return std::make_shared<LowRankPlan>(std::move(out));
}

// Row i of a part in the layer.
int64_t row_in_layer(const RowBlocks& rows, int64_t i) {
  return rows.first + i / rows.rows * rows.stride + i % rows.rows;
}

struct LowRankLinear {
  static constexpr OpName name = "low_rank_linear";
  std::shared_ptr<const LowRankPlan> plan;
  Tensor rounded_weight, rounded_a, rounded_b;
  std::function<Tensor()> recompute_x;  // in place of a saved x
  SavedTensor x = {}, weight = {}, bias = {}, a = {}, b = {}, t = {};
  Tensor weight_leaf = {}, bias_leaf = {}, a_leaf = {}, b_leaf = {};  // whose main_grad may take
  Shape x_shape = {};                                                 // the gradient
  DType bias_dtype = kFloat32;

  void for_float64() {
    rounded_weight = rounded_a = rounded_b = {};
    recompute_x = nullptr;
  }

  Tensor forward(const Tensor& x_,
                 const Tensor& weight_,
                 const Tensor& bias_,
                 const Tensor& a_,
                 const Tensor& b_) {
    const DType dtype = x_.dtype();
    const auto round = [&](const Tensor& value, Tensor& rounded) {
      if (value.dtype() != dtype && !rounded.defined()) {
        rounded = value.to(dtype);
      }
      return dense(rounded.defined() ? rounded : value);
    };
    const Tensor w = round(weight_, rounded_weight);
    const Tensor as = round(a_, rounded_a);
    const Tensor bs = round(b_, rounded_b);
    save(x_, weight_, bias_, a_, b_);
    const Tensor rows = dense(matrix_of(x_));
    const int64_t tokens = rows.size(0);
    const int64_t in = w.size(1);
    const int64_t out = w.size(0);
    const Tensor low = empty({tokens, plan->ranks}, dtype);
    for (const ScaledColumns& columns : plan->columns) {
      kernels::gemm({.dtype = dtype,
                     .c_dtype = dtype,
                     .trans_b = true,
                     .m = tokens,
                     .n = columns.count,
                     .k = in,
                     .alpha = columns.scale,
                     .lda = in,
                     .ldb = in,
                     .ldc = plan->ranks},
                    rows.raw(), element_of(as, columns.first * in), element_of(low, columns.first));
    }
    Shape shape = x_.shape();
    shape.back() = out;
    const Tensor y = empty(shape, dtype);
    if (bias_.defined()) {  // to which the products are added, rounded once
      copy_values(broadcast_view(bias_.to(dtype), shape), y);
    }
    const kernels::GemmShape product{.dtype = dtype,
                                     .c_dtype = dtype,
                                     .trans_b = true,
                                     .m = tokens,
                                     .n = out,
                                     .k = in,
                                     .lda = in,
                                     .ldb = in,
                                     .beta = bias_.defined() ? 1.0 : 0.0,
                                     .ldc = out};
    if (plan->by_parts) {
      for (const LowRankPart& part : *plan->parts) {
        kernels::GemmShape own = product;
        own.n = part.rows.rows;
        kernels::gemm_with_tail(own, rows.raw(), element_of(w, part.rows.first * in),
                                element_of(y, part.rows.first),
                                {.trans_e = true,
                                 .k = part.rank,
                                 .d = element_of(low, part.column),
                                 .ldd = plan->ranks,
                                 .e = element_of(bs, part.element),
                                 .lde = part.rank});
      }
    } else {
      const Tensor joined = joined_bs(bs, out);
      kernels::gemm_with_tail(product, rows.raw(), w.raw(), y.raw(),
                              {.trans_e = true,
                               .k = plan->ranks,
                               .d = low.raw(),
                               .ldd = plan->ranks,
                               .e = joined.raw(),
                               .lde = plan->ranks});
    }
    if (b_.requires_grad()) {
      t.save(low);
    }
    return y;
  }

  std::array<Tensor, 5> backward(const Tensor& dy, NeedsGrad needs) const {
    if (grad_enabled()) {
      return recorded(dy, needs);
    }
    std::array<Tensor, 5> out;
    const Tensor rows = dense(matrix_of(dy));
    const Tensor dt = needs[0] || needs[3] ? gradient_of_low(rows) : Tensor();
    if (needs[0]) {
      out[0] = input_gradient(rows, dt);
    }
    const bool wants_x = needs[1] || needs[3];
    const Tensor again = wants_x ? input(dy.dtype()) : Tensor();
    if (needs[1]) {
      out[1] = linear_weight_gradient(dy, again, weight_leaf);
    }
    if (needs[2]) {
      out[2] = linear_bias_gradient(dy, bias_leaf, bias_dtype);
    }
    if (needs[3]) {
      out[3] = linear_weight_gradient(dt, again, a_leaf);
    }
    if (needs[4]) {
      out[4] = gradient_of_b(rows);
    }
    return out;
  }

 private:
  void save(const Tensor& x_,
            const Tensor& weight_,
            const Tensor& bias_,
            const Tensor& a_,
            const Tensor& b_) {
    x_shape = x_.shape();
    if (bias_.defined()) {
      bias_dtype = bias_.dtype();
      bias_leaf = bias_.requires_grad() ? bias_ : Tensor();
      bias.save(bias_);
    }
    const auto leaf = [](const Tensor& value) { return value.requires_grad() ? value : Tensor(); };
    weight_leaf = leaf(weight_);
    a_leaf = leaf(a_);
    b_leaf = leaf(b_);
    if ((weight_leaf.defined() || a_leaf.defined() || b_leaf.defined()) && recompute_x == nullptr) {
      x.save(x_);
    }
    weight.save(weight_);
    a.save(a_);
    b.save(b_);
  }

  // [out, ranks]
  Tensor joined_bs(const Tensor& bs, int64_t out) const {
    const Tensor joined = zeros({out, plan->ranks}, bs.dtype());
    const int64_t size = size_of(bs.dtype());
    for (const LowRankPart& part : *plan->parts) {
      for (int64_t i = 0; i < part.rows.total(); ++i) {
        std::memcpy(element_of(joined, row_in_layer(part.rows, i) * plan->ranks + part.column),
                    element_of(bs, part.element + i * part.rank),
                    static_cast<size_t>(part.rank * size));
      }
    }
    return joined;
  }

  // dt = s dy B: [N, ranks].
  Tensor gradient_of_low(const Tensor& rows) const {
    const DType dtype = rows.dtype();
    const Tensor bs = dense(rounded_b.defined() ? rounded_b : b.get());
    const Tensor dt = empty({rows.size(0), plan->ranks}, dtype);
    const kernels::GemmShape product{.dtype = dtype,
                                     .c_dtype = dtype,
                                     .m = rows.size(0),
                                     .k = rows.size(1),
                                     .lda = rows.size(1),
                                     .ldb = plan->ranks,
                                     .ldc = plan->ranks};
    if (plan->by_parts) {
      for (const LowRankPart& part : *plan->parts) {
        kernels::GemmShape own = product;
        own.n = part.rank;
        own.k = part.rows.rows;
        own.alpha = part.scale;
        own.ldb = part.rank;
        kernels::gemm(own, element_of(rows, part.rows.first), element_of(bs, part.element),
                      element_of(dt, part.column));
      }
      return dt;
    }
    const Tensor joined = joined_bs(bs, rows.size(1));
    for (const ScaledColumns& columns : plan->columns) {
      kernels::GemmShape own = product;
      own.n = columns.count;
      own.alpha = columns.scale;
      kernels::gemm(own, rows.raw(), element_of(joined, columns.first),
                    element_of(dt, columns.first));
    }
    return dt;
  }

  Tensor input_gradient(const Tensor& rows, const Tensor& dt) const {
    const Tensor w = dense(rounded_weight.defined() ? rounded_weight : weight.get());
    const Tensor as = dense(rounded_a.defined() ? rounded_a : a.get());
    const Tensor dx = empty(x_shape, rows.dtype());
    kernels::gemm_with_tail(
        {.dtype = rows.dtype(),
         .c_dtype = rows.dtype(),
         .m = rows.size(0),
         .n = w.size(1),
         .k = w.size(0),
         .lda = w.size(0),
         .ldb = w.size(1),
         .ldc = w.size(1)},
        rows.raw(), w.raw(), dx.raw(),
        {.k = plan->ranks, .d = dt.raw(), .ldd = plan->ranks, .e = as.raw(), .lde = w.size(1)});
    return dx;
  }

  Tensor gradient_of_b(const Tensor& rows) const {
    const Tensor low = t.get();
    const bool is_half = size_of(rows.dtype()) == 2;
    const DType sums = is_half ? kFloat32 : rows.dtype();
    const MainGradTarget target = sums == kFloat32 ? main_grad_target(b_leaf) : MainGradTarget();
    const bool in_place = target.buffer.defined();
    const Tensor db = in_place ? target.buffer : empty(b_leaf.shape(), sums);
    for (const LowRankPart& part : *plan->parts) {
      const bool lies_apart = part.rows.count > 1;
      const Tensor own = lies_apart ? dense(columns_of(rows, part.rows)) : rows;
      kernels::gemm({.dtype = rows.dtype(),
                     .c_dtype = sums,
                     .trans_a = true,
                     .m = part.rows.total(),
                     .n = part.rank,
                     .k = rows.size(0),
                     .lda = own.size(1),
                     .ldb = plan->ranks,
                     .beta = in_place && !target.overwrite ? 1.0 : 0.0,
                     .ldc = part.rank},
                    element_of(own, lies_apart ? 0 : part.rows.first), element_of(low, part.column),
                    element_of(db, part.element));
    }
    if (in_place) {
      return db;
    }
    const Tensor added = is_half ? add_to_main_grad(b_leaf, db) : Tensor();
    return added.defined() ? added : db.to(b_leaf.dtype());
  }

  Tensor input(DType dtype) const {
    if (recompute_x == nullptr) {
      return x;
    }
    Tensor again = recompute_x();
    check<ValueError>(again.defined() && again.shape() == x_shape && again.dtype() == dtype, name,
                      ": recompute_x gave ", describe(again), " for x, which was ", name_of(dtype),
                      " ", x_shape);
    return again;
  }

  // The same as recorded ops, whose derivatives are known.
  std::array<Tensor, 5> recorded(const Tensor& dy, NeedsGrad needs) const {
    const bool needs_x = needs[1] || needs[3] || needs[4];
    const Tensor again = needs_x ? input(dy.dtype()) : zeros(x_shape, dy.dtype());
    const TensorList all = vjp(
        [&](const TensorList& in) {
          return add_low_rank(linear(in[0], in[1], in[2]), linear(in[0], in[3]), in[4], {},
                              plan->modules);
        },
        dy, {again, weight, bias, a, b});
    std::array<Tensor, 5> out;
    for (size_t i = 0; i < out.size(); ++i) {
      if (needs[i]) {
        out[i] = all[i];
      }
    }
    return out;
  }
};

}  // namespace

Tensor low_rank_linear(const Tensor& x,
                       const LowRankWeights& weights,
                       const std::vector<LowRankModule>& modules,
                       std::function<Tensor()> recompute_x) {
  check<ValueError>(x.dim() > 0 && x.shape().back() == weights.weight.size(1),
                    "low_rank_linear: the last axis of x ", x.shape(), " must be that of weight ",
                    weights.weight.shape());
  return apply_op(LowRankLinear{plan_of(modules, weights.weight.size(0)), weights.rounded_weight,
                                weights.rounded_a, weights.rounded_b, std::move(recompute_x)},
                  x, weights.weight, weights.bias, weights.a, weights.b);
}

}  // namespace tapestry

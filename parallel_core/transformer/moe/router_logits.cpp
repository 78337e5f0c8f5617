#include "parallel_core/transformer/moe/router_logits.h"

#include <array>

#include "autograd/kernels/exact/exact_sums.h"
#include "autograd/kernels/gemm/row_dots.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/exact_runs.h"
#include "autograd/ops/linear_gradients.h"
#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/transformer/moe/exact_gradient.h"

namespace tapestry {

namespace {

struct RouterLogits {
  static constexpr OpName name = "router_logits";
  SavedTensor x = {}, weight = {};
  Tensor leaf = {};  // the weight itself, whose main_grad may take the gradient

  Tensor forward(const Tensor& x_, const Tensor& weight_) {
    if (weight_.requires_grad()) {
      leaf = weight_;
      x.save(x_);
    }
    if (x_.requires_grad()) {
      weight.save(weight_);
    }
    const Tensor rows = dense(x_);
    const Tensor columns = dense(weight_);
    Tensor y = empty({rows.size(0), columns.size(0)}, rows.dtype());
    kernels::row_dots(rows.dtype(), rows.size(0), columns.size(0), rows.size(1), rows.raw(),
                      columns.raw(), y.raw());
    return y;
  }
  std::array<Tensor, 2> backward(const Tensor& dy, NeedsGrad needs) const {
    return {needs[0] ? linear_input_gradient(dy, weight, {}) : Tensor(),
            needs[1] ? linear_weight_gradient(dy, x, leaf) : Tensor()};
  }
};

// The same in exact mode, with a bias.
struct ExactRouterLogits {
  static constexpr OpName name = "exact_router_logits";
  SavedTensor x = {}, weight = {};
  Tensor leaf = {}, bias_leaf = {};

  Tensor forward(const Tensor& x_, const Tensor& weight_, const Tensor& bias) {
    if (weight_.requires_grad()) {
      leaf = weight_;
      x.save(x_);
    }
    if (bias.defined() && bias.requires_grad()) {
      bias_leaf = bias;
    }
    if (x_.requires_grad()) {
      weight.save(weight_);
    }
    const Tensor rows = dense(x_);
    const Tensor columns = dense(weight_.to(x_.dtype()));
    const Tensor y = empty({rows.size(0), columns.size(0)}, rows.dtype());
    kernels::row_dots(rows.dtype(), rows.size(0), columns.size(0), rows.size(1), rows.raw(),
                      columns.raw(), y.raw());
    return bias.defined() ? y + bias.to(x_.dtype()) : y;
  }
  std::array<Tensor, 3> backward(const Tensor& dy_, NeedsGrad needs) const {
    check<RuntimeError>(!grad_enabled(), name, ": exact mode has no gradients of gradients");
    const Tensor dy = dense(dy_);
    std::array<Tensor, 3> out;
    if (needs[0]) {
      out[0] = linear_input_gradient(dy, weight.get().to(dy.dtype()), {});
    }
    if (needs[1]) {
      out[1] = exact_gradient(
          leaf, [&](const Tensor& sums) { add_exact_products(dy, x.get(), sums, /*apart=*/true); });
    }
    if (needs[2]) {
      out[2] = exact_gradient(bias_leaf, [&](const Tensor& sums) {
        kernels::add_columns_to_exact(dy.dtype(), dy.size(0), dy.size(1), dy.raw(), dy.size(1),
                                      sums.data<double>());
      });
    }
    return out;
  }
};

}  // namespace

Tensor router_logits(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check<ValueError>(x.dim() == 2 && weight.dim() == 2 && x.size(1) == weight.size(1),
                    RouterLogits::name, ": x ", describe(x), " and weight ", describe(weight),
                    " must be [T, H] and [E, H]");
  if (in_exact() && x.dtype() == kFloat32) {
    return apply_op(ExactRouterLogits{}, x, weight, bias);
  }
  check<TypeError>(x.dtype() == weight.dtype() && !bias.defined() &&
                       (x.dtype() == kFloat32 || x.dtype() == kFloat64),
                   RouterLogits::name, ": x ", describe(x), " and weight ", describe(weight),
                   " must both be float32 or float64");
  return apply_op(RouterLogits{}, x, weight);
}

}  // namespace tapestry

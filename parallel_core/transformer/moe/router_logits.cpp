#include "parallel_core/transformer/moe/router_logits.h"

#include <array>

#include "autograd/kernels/gemm/row_dots.h"
#include "autograd/ops/linear_gradients.h"
#include "autograd/ops/map.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

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

}  // namespace

Tensor router_logits(const Tensor& x, const Tensor& weight) {
  check<ValueError>(x.dim() == 2 && weight.dim() == 2 && x.size(1) == weight.size(1),
                    RouterLogits::name, ": x ", describe(x), " and weight ", describe(weight),
                    " must be [T, H] and [E, H]");
  check<TypeError>(x.dtype() == weight.dtype() && (x.dtype() == kFloat32 || x.dtype() == kFloat64),
                   RouterLogits::name, ": x ", describe(x), " and weight ", describe(weight),
                   " must both be float32 or float64");
  return apply_op(RouterLogits{}, x, weight);
}

}  // namespace tapestry

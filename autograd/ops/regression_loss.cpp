#include "autograd/ops/elementwise.h"
#include "autograd/ops/loss.h"
#include "autograd/ops/map.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/autograd_meta.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

void check_pair(std::string_view op, const Tensor& input, const Tensor& target) {
  check<ValueError>(input.shape() == target.shape(), op, ": the shapes of input ", input.shape(),
                    " and target ", target.shape(), " differ");
  check_floating(op, result_dtype(input, target));
}

}  // namespace

Tensor l1_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
  check_defined("l1_loss", input, "input", target, "target");
  check_pair("l1_loss", input, target);
  return reduce_loss(abs(sub(input, target)), reduction);
}

Tensor smooth_l1_loss(const Tensor& input,
                      const Tensor& target,
                      const SmoothL1LossOptions& options) {
  check_defined("smooth_l1_loss", input, "input", target, "target");
  check_pair("smooth_l1_loss", input, target);
  check<ValueError>(options.beta >= 0, "smooth_l1_loss: beta must not be negative, got ",
                    options.beta);
  const Tensor distance = abs(sub(input, target));
  if (options.beta == 0) {
    return reduce_loss(distance, options.reduction);
  }
  // With n = min(d, beta) both cases are n (d - n / 2) / beta.
  const Tensor near = clamp(distance, 0, options.beta);
  const Tensor each = mul(mul(near, sub(distance, mul(near, 0.5))), 1 / options.beta);
  const Tensor loss = reduce_loss(each, options.reduction);
  watch_versions(loss, {input, target});  // PyTorch keeps them, not their difference
  return loss;
}

Tensor kl_div(const Tensor& input, const Tensor& target, const KlDivOptions& options) {
  check_defined("kl_div", input, "input", target, "target");
  check_pair("kl_div", input, target);
  Tensor loss;
  if (options.log_target) {
    loss = mul(exp(target), sub(target, input));
  } else {
    const Tensor none = eq(target.detach(), 0.0);
    const Tensor entropy = mul(target, log(masked_fill(target, none, 1)));
    loss = sub(entropy, mul(target, input));
  }
  if (!options.batch_mean) {
    return reduce_loss(loss, options.reduction);
  }
  check<ValueError>(input.dim() > 0, "kl_div: batch_mean needs an axis to count samples along");
  return div(sum(loss), static_cast<double>(input.size(0)));
}

}  // namespace tapestry

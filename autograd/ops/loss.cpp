#include "autograd/ops/loss.h"

#include "autograd/ops/activation.h"
#include "autograd/ops/cross_entropy_rows.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/rows.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

Tensor reduce_loss(const Tensor& loss, Reduction reduction) {
  check_defined("reduce_loss", loss, "loss");
  switch (reduction) {
    case Reduction::kNone:
      return loss;
    case Reduction::kSum:
      return sum(loss);
    case Reduction::kMean:
      break;
  }
  return mean(loss);
}

namespace {

// One loss per row.
struct CrossEntropy {
  static constexpr OpName name = "cross_entropy";
  CrossEntropyRows rows;
  SavedTensor logits = {}, labels = {}, lse = {};

  // labels_: int64
  Tensor forward(const Tensor& logits_, const Tensor& labels_) {
    const Tensor x = dense(logits_);
    const Tensor y = dense(labels_);
    logits.save(logits_);
    labels.save(y);
    Tensor loss = empty(y.shape(), wide_dtype(x.dtype()));
    Tensor row_lse = empty(y.shape(), loss.dtype());
    rows.forward(x, y, loss, row_lse);
    lse.save(row_lse);
    return loss;
  }

  TensorList backward(const Tensor& dy, NeedsGrad /*needs*/) const {
    const Tensor y = labels;
    if (grad_enabled()) {
      const auto twin = [&](const TensorList& in) { return rows.composed(in[0], y); };
      return {vjp(twin, dy, {logits})[0], Tensor()};
    }
    // The logits are the largest tensor of a model. If nobody can see them any more, their gradient
    // takes their place.
    const bool disposable = releases_graph() && logits.is_only_handle();
    const Tensor kept = logits;
    const Tensor x = dense(kept);
    const bool own = disposable || x.raw() != kept.raw();
    Tensor dx = own ? x : empty_like(x);
    rows.backward(x, y, lse, dense(dy), dx);
    return {dx, Tensor()};
  }
};

}  // namespace

Tensor cross_entropy(const Tensor& logits,
                     const Tensor& labels,
                     const CrossEntropyOptions& options) {
  check_defined("cross_entropy", logits, "logits", labels, "labels");
  check_cross_entropy("cross_entropy", logits.shape(), logits.dtype(), labels, options);
  const Tensor rows =
      apply_op(CrossEntropy{CrossEntropyRows(logits.shape(), options)}, logits, labels.to(kInt64));
  watch_versions(rows, {labels});
  return reduce_rows(rows, labels, options.ignore_index, options.loss_mask, options.reduction);
}

Tensor composed_cross_entropy(const Tensor& logits,
                              const Tensor& labels,
                              const CrossEntropyOptions& options) {
  check_cross_entropy("cross_entropy", logits.shape(), logits.dtype(), labels, options);
  const Tensor rows = CrossEntropyRows(logits.shape(), options).composed(logits, labels);
  return reduce_rows(rows, labels, options.ignore_index, options.loss_mask, options.reduction);
}

Tensor nll_loss(const Tensor& log_probs, const Tensor& labels, const NllLossOptions& options) {
  check_defined("nll_loss", log_probs, "log_probs", labels, "labels");
  check_labels("nll_loss", log_probs.shape(), log_probs.dtype(), labels,
               log_probs.dim() == 0 ? 0 : log_probs.shape().back(), options.ignore_index);
  const Tensor ignored = eq(labels, options.ignore_index);
  const Tensor rows = masked_fill(neg(pick_columns(log_probs, labels)), ignored, 0);
  const Tensor loss = reduce_rows(rows, labels, options.ignore_index, {}, options.reduction);
  watch_versions(loss, {log_probs, labels});
  return loss;
}

Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
  check_defined("mse_loss", input, "input", target, "target");
  check<ValueError>(input.shape() == target.shape(), "mse_loss: the shapes of input ",
                    input.shape(), " and target ", target.shape(), " differ");
  check_floating("mse_loss", input.dtype());
  const Tensor loss = reduce_loss(square(sub(input, target)), reduction);
  watch_versions(loss, {input, target});  // PyTorch keeps them, not their difference
  return loss;
}

Tensor binary_cross_entropy_with_logits(const Tensor& logits,
                                        const Tensor& targets,
                                        const Tensor& pos_weight,
                                        Reduction reduction) {
  check_defined("binary_cross_entropy_with_logits", logits, "logits", targets, "targets");
  constexpr std::string_view op = "binary_cross_entropy_with_logits";
  check_floating(op, logits.dtype());
  check<ValueError>(logits.shape() == targets.shape(), op, ": the shapes of logits ",
                    logits.shape(), " and targets ", targets.shape(), " differ");
  const Tensor y = targets.to(logits.dtype());
  if (!pos_weight.defined()) {
    // -log(sigmoid(x)) = softplus(-x), and softplus(x) = x + softplus(-x).
    return reduce_loss(sub(softplus(logits), mul(logits, y)), reduction);
  }
  check<ValueError>(broadcast_shapes(op, logits.shape(), pos_weight.shape()) == logits.shape(), op,
                    ": pos_weight ", pos_weight.shape(), " does not broadcast to ", logits.shape());
  const Tensor w = pos_weight.to(logits.dtype());
  // In this form w and y are kept themselves, not what is computed from them: where they are
  // changed before backward, that says so, and where they come to want a gradient, that of dx
  // reaches them.
  const Tensor positive = mul(w, mul(y, softplus(neg(logits))));
  const Tensor all = softplus(logits);
  return reduce_loss(add(positive, sub(all, mul(y, all))), reduction);
}

}  // namespace tapestry

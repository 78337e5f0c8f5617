#include "autograd/ops/loss.h"

#include "autograd/kernels/cross_entropy.h"
#include "autograd/kernels/parallel_for.h"
#include "autograd/ops/activation.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/rows.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/softmax.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

Tensor reduce_loss(const Tensor& loss, Reduction reduction) {
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

// Weighs the losses of rows, which are 0 where the label is ignored, and reduces them. All of this
// is on one number per row.
Tensor reduce_rows(const Tensor& rows,
                   const Tensor& labels,
                   int64_t ignore_index,
                   const Tensor& loss_mask,
                   Reduction reduction) {
  const Tensor kept = ne(labels, static_cast<double>(ignore_index)).to(rows.dtype());
  const Tensor weights = loss_mask.defined() ? mul(kept, loss_mask.to(rows.dtype())) : kept;
  Tensor weighted = loss_mask.defined() ? mul(rows, weights) : rows;
  switch (reduction) {
    case Reduction::kNone:
      return weighted;
    case Reduction::kSum:
      return sum(weighted);
    case Reduction::kMean:
      break;
  }
  return div(sum(weighted), sum(weights));
}

void check_labels(std::string_view op,
                  const Tensor& scores,
                  const Tensor& labels,
                  int64_t columns,
                  int64_t ignore_index) {
  check_floating(op, scores.dtype());
  check<TypeError>(is_integral(labels.dtype()), op, ": labels must be int32 or int64, got ",
                   name_of(labels.dtype()));
  check<ValueError>(scores.dim() >= 1, op,
                    ": the first argument must have an axis of columns, got ", describe(scores));
  Shape rows = scores.shape();
  rows.pop_back();
  check<ValueError>(labels.shape() == rows, op, ": labels ", labels.shape(),
                    " must have the shape of the rows of ", scores.shape(), ", which is ", rows);
  const Tensor dense_labels = dense(labels);
  const auto scan = [&]<class T>(const T* data) {
    for (int64_t i = 0; i < dense_labels.numel(); ++i) {
      const auto label = static_cast<int64_t>(data[i]);
      check<IndexError>((label >= 0 && label < columns) || label == ignore_index, op, ": label ",
                        label, " at position ", position_in(rows, i), " is outside [0, ", columns,
                        ") and is not ignore_index (", ignore_index,
                        "); check tokenizer and vocabulary size");
    }
  };
  if (labels.dtype() == kInt32) {
    scan(dense_labels.data<int32_t>());
  } else {
    scan(dense_labels.data<int64_t>());
  }
}

int64_t valid_columns(const Tensor& logits, const CrossEntropyOptions& options) {
  return options.valid_vocab < 0 ? logits.shape().back() : options.valid_vocab;
}

void check_cross_entropy(const Tensor& logits,
                         const Tensor& labels,
                         const CrossEntropyOptions& options) {
  constexpr std::string_view op = "cross_entropy";
  check<ValueError>(options.label_smoothing >= 0 && options.label_smoothing < 1, op,
                    ": label_smoothing must lie in [0, 1), got ", options.label_smoothing);
  check<ValueError>(
      logits.dim() == 0 || (valid_columns(logits, options) >= 1 && options.valid_vocab >= -1 &&
                            options.valid_vocab <= logits.shape().back()),
      op, ": valid_vocab ", options.valid_vocab, " must lie in [1, V] (or be -1) for logits ",
      logits.shape());
  check<ValueError>(!options.loss_mask.defined() || options.loss_mask.shape() == labels.shape(), op,
                    ": loss_mask ",
                    options.loss_mask.defined() ? options.loss_mask.shape() : Shape(),
                    " must have the shape of the labels, ", labels.shape());
  check_labels(op, logits, labels, logits.dim() == 0 ? 0 : valid_columns(logits, options),
               options.ignore_index);
}

Tensor composed_rows(const Tensor& logits,
                     const Tensor& labels,
                     int64_t valid,
                     int64_t ignore_index,
                     double smoothing) {
  const Tensor x = slice(widen(logits), -1, 0, valid);
  Tensor loss = sub(composed_logsumexp(x, {-1}), mul(pick_columns(x, labels), 1 - smoothing));
  if (smoothing > 0) {
    loss = sub(loss, mul(mean(x, {-1}), smoothing));
  }
  return masked_fill(loss, eq(labels, static_cast<double>(ignore_index)), 0);
}

// The part of label smoothing that the kernel does not know. With s the smoothing, a row's loss is
// nll + s (x_label - mean(x)); the mean is over the valid columns and carried in float64.
struct Smoothing {
  double amount;
  int64_t valid;
  int64_t ignore_index;

  // loss += amount * (x_label - mean(x))
  void add_to_loss(const Tensor& logits, const Tensor& labels, Tensor& loss) const {
    each_row(logits, labels, [&]<class T, class Loss>(int64_t row, int64_t label, const T* x) {
      double total = 0;
      for (int64_t j = 0; j < valid; ++j) {
        total += static_cast<double>(static_cast<Loss>(x[j]));
      }
      const auto label_logit = static_cast<double>(static_cast<Loss>(x[label]));
      Loss& value = loss.data<Loss>()[row];
      value = static_cast<Loss>(static_cast<double>(value) +
                                amount * (label_logit - total / static_cast<double>(valid)));
    });
  }

  // dlogits += dloss * amount * (onehot - 1 / valid)
  void add_to_gradient(const Tensor& dloss, const Tensor& labels, Tensor& dlogits) const {
    each_row(dlogits, labels, [&]<class T, class Loss>(int64_t row, int64_t label, T* dx) {
      const double scale = static_cast<double>(dloss.data<Loss>()[row]) * amount;
      const auto spread = static_cast<Loss>(scale / static_cast<double>(valid));
      for (int64_t j = 0; j < valid; ++j) {
        const Loss own = j == label ? static_cast<Loss>(scale) : Loss{0};
        dx[j] = static_cast<T>(static_cast<Loss>(dx[j]) + own - spread);
      }
    });
  }

 private:
  // Calls f(row, label, address of the row) for the rows that are not ignored.
  template <class F>
  void each_row(const Tensor& matrix, const Tensor& labels, const F& f) const {
    const int64_t columns = matrix.shape().back();
    const auto* label = labels.data<int64_t>();
    const auto visit = [&]<class T, class Loss>() {
      T* data = static_cast<T*>(matrix.raw());
      kernels::parallel_for(
          labels.numel(), 1 + kernels::kGrainSize / columns, [&](int64_t begin, int64_t end) {
            for (int64_t row = begin; row < end; ++row) {
              if (label[row] != ignore_index) {
                f.template operator()<T, Loss>(row, label[row], data + row * columns);
              }
            }
          });
    };
    switch (matrix.dtype()) {
      case kFloat64:
        return visit.template operator()<double, double>();
      case kFloat16:
        return visit.template operator()<Float16, float>();
      case kBFloat16:
        return visit.template operator()<BFloat16, float>();
      default:
        return visit.template operator()<float, float>();
    }
  }
};

// One loss per row.
struct CrossEntropy {
  static constexpr std::string_view name = "cross_entropy";
  int64_t valid;
  int64_t ignore_index;
  double smoothing;
  SavedTensor logits, labels, lse;

  // labels_: int64
  Tensor forward(const Tensor& logits_, const Tensor& labels_) {
    const Tensor x = dense(logits_);
    const Tensor y = dense(labels_);
    logits.save(logits_);
    labels.save(y);
    Tensor loss = empty(y.shape(), wide_dtype(x.dtype()));
    Tensor row_lse = empty(y.shape(), loss.dtype());
    kernels::cross_entropy(x.dtype(), y.numel(), x.shape().back(), valid, x.raw(),
                           y.data<int64_t>(), ignore_index, loss.raw(), row_lse.raw());
    if (smoothing > 0) {
      Smoothing{smoothing, valid, ignore_index}.add_to_loss(x, y, loss);
    }
    lse.save(row_lse);
    return loss;
  }

  TensorList backward(const Tensor& dy, NeedsGrad /*needs*/) const {
    const Tensor y = labels;
    if (grad_enabled()) {
      const auto twin = [&](const TensorList& in) {
        return composed_rows(in[0], y, valid, ignore_index, smoothing);
      };
      return {vjp(twin, dy, {logits})[0], Tensor()};
    }
    const Tensor x = dense(logits.get());
    const Tensor dloss = dense(dy);
    Tensor dx = empty_like(x);
    kernels::cross_entropy_backward(x.dtype(), y.numel(), x.shape().back(), valid, x.raw(),
                                    y.data<int64_t>(), ignore_index, lse.get().raw(), dloss.raw(),
                                    dx.raw());
    if (smoothing > 0) {
      Smoothing{smoothing, valid, ignore_index}.add_to_gradient(dloss, y, dx);
    }
    return {dx, Tensor()};
  }
};

}  // namespace

Tensor cross_entropy(const Tensor& logits,
                     const Tensor& labels,
                     const CrossEntropyOptions& options) {
  check_cross_entropy(logits, labels, options);
  const CrossEntropy op{valid_columns(logits, options), options.ignore_index,
                        options.label_smoothing};
  const Tensor rows = apply_op(op, logits, labels.to(kInt64));
  return reduce_rows(rows, labels, options.ignore_index, options.loss_mask, options.reduction);
}

Tensor composed_cross_entropy(const Tensor& logits,
                              const Tensor& labels,
                              const CrossEntropyOptions& options) {
  check_cross_entropy(logits, labels, options);
  const Tensor rows = composed_rows(logits, labels, valid_columns(logits, options),
                                    options.ignore_index, options.label_smoothing);
  return reduce_rows(rows, labels, options.ignore_index, options.loss_mask, options.reduction);
}

Tensor nll_loss(const Tensor& log_probs, const Tensor& labels, const NllLossOptions& options) {
  check_labels("nll_loss", log_probs, labels, log_probs.dim() == 0 ? 0 : log_probs.shape().back(),
               options.ignore_index);
  const Tensor ignored = eq(labels, static_cast<double>(options.ignore_index));
  const Tensor rows = masked_fill(neg(pick_columns(log_probs, labels)), ignored, 0);
  return reduce_rows(rows, labels, options.ignore_index, {}, options.reduction);
}

Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
  check<ValueError>(input.shape() == target.shape(), "mse_loss: the shapes of input ",
                    input.shape(), " and target ", target.shape(), " differ");
  check_floating("mse_loss", input.dtype());
  return reduce_loss(square(sub(input, target)), reduction);
}

Tensor binary_cross_entropy_with_logits(const Tensor& logits,
                                        const Tensor& targets,
                                        const Tensor& pos_weight,
                                        Reduction reduction) {
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
  const Tensor positive = mul(mul(w, y), softplus(neg(logits)));
  return reduce_loss(add(positive, mul(sub(1, y), softplus(logits))), reduction);
}

}  // namespace tapestry

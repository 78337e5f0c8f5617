#include "autograd/ops/cross_entropy_rows.h"

#include "autograd/kernels/losses/cross_entropy.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/rows.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/softmax.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

int64_t valid_columns(const Shape& logits, const CrossEntropyOptions& options) {
  return options.valid_vocab < 0 ? logits.back() : options.valid_vocab;
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

kernels::CrossEntropyShape shape_of(const CrossEntropyRows& loss,
                                    const Tensor& logits,
                                    const Tensor& labels) {
  return {.dtype = logits.dtype(),
          .rows = labels.numel(),
          .vocab = logits.shape().back(),
          .valid_vocab = loss.valid,
          .ignore_index = loss.ignore_index};
}

}  // namespace

CrossEntropyRows::CrossEntropyRows(const Shape& logits, const CrossEntropyOptions& options)
    : valid(valid_columns(logits, options)),
      ignore_index(options.ignore_index),
      smoothing(options.label_smoothing) {}

void CrossEntropyRows::forward(const Tensor& logits,
                               const Tensor& labels,
                               Tensor& loss,
                               Tensor& lse) const {
  kernels::cross_entropy({.shape = shape_of(*this, logits, labels),
                          .logits = logits.raw(),
                          .labels = labels.data<int64_t>(),
                          .loss = loss.raw(),
                          .lse = lse.raw()});
  if (smoothing > 0) {
    Smoothing{smoothing, valid, ignore_index}.add_to_loss(logits, labels, loss);
  }
}

void CrossEntropyRows::backward(const Tensor& logits,
                                const Tensor& labels,
                                const Tensor& lse,
                                const Tensor& dloss,
                                Tensor& dlogits) const {
  kernels::cross_entropy_backward({.shape = shape_of(*this, logits, labels),
                                   .logits = logits.raw(),
                                   .labels = labels.data<int64_t>(),
                                   .lse = lse.raw(),
                                   .dloss = dloss.raw(),
                                   .dlogits = dlogits.raw()});
  if (smoothing > 0) {
    Smoothing{smoothing, valid, ignore_index}.add_to_gradient(dloss, labels, dlogits);
  }
}

Tensor CrossEntropyRows::composed(const Tensor& logits, const Tensor& labels) const {
  const Tensor x = slice(widen(logits), -1, 0, valid);
  Tensor loss = sub(composed_logsumexp(x, {-1}), mul(pick_columns(x, labels), 1 - smoothing));
  if (smoothing > 0) {
    loss = sub(loss, mul(mean(x, {-1}), smoothing));
  }
  return masked_fill(loss, eq(labels, ignore_index), 0);
}

void check_labels(std::string_view op,
                  const Shape& scores,
                  DType dtype,
                  const Tensor& labels,
                  int64_t columns,
                  int64_t ignore_index) {
  check_floating(op, dtype);
  check<TypeError>(is_index(labels.dtype()), op, ": labels must be int32 or int64, got ",
                   name_of(labels.dtype()));
  check<ValueError>(!scores.empty(), op,
                    ": the first argument must have an axis of columns, got a scalar of ",
                    name_of(dtype));
  Shape rows = scores;
  rows.pop_back();
  check<ValueError>(labels.shape() == rows, op, ": labels ", labels.shape(),
                    " must have the shape of the rows of ", scores, ", which is ", rows);
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

void check_cross_entropy(std::string_view op,
                         const Shape& logits,
                         DType dtype,
                         const Tensor& labels,
                         const CrossEntropyOptions& options) {
  check<ValueError>(options.label_smoothing >= 0 && options.label_smoothing < 1, op,
                    ": label_smoothing must lie in [0, 1), got ", options.label_smoothing);
  check<ValueError>(
      logits.empty() || (valid_columns(logits, options) >= 1 && options.valid_vocab >= -1 &&
                         options.valid_vocab <= logits.back()),
      op, ": valid_vocab ", options.valid_vocab, " must lie in [1, V] (or be -1) for logits ",
      logits);
  check<ValueError>(!options.loss_mask.defined() || options.loss_mask.shape() == labels.shape(), op,
                    ": loss_mask ",
                    options.loss_mask.defined() ? options.loss_mask.shape() : Shape(),
                    " must have the shape of the labels, ", labels.shape());
  check_labels(op, logits, dtype, labels, logits.empty() ? 0 : valid_columns(logits, options),
               options.ignore_index);
}

Tensor row_weights(const Tensor& labels,
                   int64_t ignore_index,
                   const Tensor& loss_mask,
                   DType dtype) {
  const Tensor kept = ne(labels, ignore_index).to(dtype);
  return loss_mask.defined() ? mul(kept, loss_mask.to(dtype)) : kept;
}

Tensor reduce_rows(const Tensor& rows,
                   const Tensor& labels,
                   int64_t ignore_index,
                   const Tensor& loss_mask,
                   Reduction reduction) {
  const Tensor weights = row_weights(labels, ignore_index, loss_mask, rows.dtype());
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

}  // namespace tapestry

#include <algorithm>
#include <vector>

#include "autograd/kernels/exact/exact_sums.h"
#include "autograd/kernels/gemm/gemm_exact.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/kernels/machine/work_counter.h"
#include "autograd/kernels/memory.h"
#include "autograd/kernels/reduce.h"
#include "autograd/ops/activation.h"
#include "autograd/ops/cross_entropy_rows.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/exact_runs.h"
#include "autograd/ops/heads/leaf_order.h"
#include "autograd/ops/heads/logit_chunks.h"
#include "autograd/ops/loss.h"
#include "autograd/ops/map.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/rows.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/main_grad.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {

namespace {

// hidden in a 16-bit dtype with a float32 weight
bool is_mixed(const Tensor& hidden, const Tensor& weight) {
  return size_of(hidden.dtype()) == 2 && weight.dtype() == kFloat32;
}

Shape logits_shape(const Tensor& hidden, const Tensor& weight) {
  Shape shape = hidden.shape();
  shape.back() = weight.shape()[0];
  return shape;
}

void check_arguments(const Tensor& hidden,
                     const Tensor& weight,
                     const Tensor& labels,
                     const LinearCrossEntropyOptions& options) {
  constexpr std::string_view op = "linear_cross_entropy";
  check<ValueError>(options.chunk_rows >= 1, op, ": chunk_rows must be positive, got ",
                    options.chunk_rows);
  check<ValueError>(options.logit_cap >= 0, op, ": logit_cap must not be negative, got ",
                    options.logit_cap);
  check<ValueError>(weight.dim() == 2, op, ": weight must be [V, H], it is ", weight.shape());
  check<ValueError>(hidden.dim() >= 1 && hidden.shape().back() == weight.shape()[1], op,
                    ": the last axis of hidden ", hidden.shape(), " must be that of weight ",
                    weight.shape());
  check<TypeError>(hidden.dtype() == weight.dtype() || is_mixed(hidden, weight), op,
                   ": the dtypes of hidden (", name_of(hidden.dtype()), ") and weight (",
                   name_of(weight.dtype()), ") differ, and are not a 16-bit one and float32");
  check<TypeError>(!options.rounded.defined() ||
                       (is_mixed(hidden, weight) && options.rounded.dtype() == hidden.dtype()),
                   op, ": the rounded weight stands for a float32 weight in hidden's dtype");
  check<ValueError>(!options.rounded.defined() || options.rounded.shape() == weight.shape(), op,
                    ": the rounded weight must have the shape of weight ", weight.shape());
  check_cross_entropy(op, logits_shape(hidden, weight), hidden.dtype(), labels, options.loss);
}

// float16 is too narrow for gradients that are not scaled yet.
bool gradients_in_forward(const Tensor& hidden, const LinearCrossEntropyOptions& options) {
  return options.loss.reduction != Reduction::kNone && hidden.dtype() != kFloat16 &&
         !(options.loss.loss_mask.defined() && options.loss.loss_mask.requires_grad());
}

// The second path, for gradients of gradients: of loss(rows' losses).
template <class Loss>
TensorList composed_gradients(const CrossEntropyRows& rows,
                              const LogitForm& form,
                              const Tensor& hidden,
                              const Tensor& weight,
                              const Tensor& labels,
                              const Tensor& dy,
                              const Loss& loss) {
  const auto twin = [&](const TensorList& in) {
    const Tensor products = linear(in[0], in[1].to(in[0].dtype()));
    return loss(rows.composed(form.is_plain() ? products : soft_cap(products, form.scale, form.cap),
                              labels));
  };
  const TensorList d = vjp(twin, dy, {hidden, weight});
  return {d[0], d[1], Tensor()};
}

// One loss per row. How what follows weighs the rows is known only in backward, which makes the
// logits again.
struct LinearCrossEntropy {
  static constexpr OpName name = "linear_cross_entropy";
  CrossEntropyRows rows;
  LogitForm form;
  int64_t chunk_rows;
  Tensor rounded;  // the weight in hidden's dtype, where that differs
  SavedTensor hidden = {}, weight = {}, labels = {}, lse = {};

  void for_float64() { rounded = {}; }
  // labels_: int64, dense
  Tensor forward(const Tensor& hidden_, const Tensor& weight_, const Tensor& labels_) {
    hidden.save(hidden_);
    weight.save(weight_);
    labels.save(labels_);
    if (weight_.dtype() != hidden_.dtype() && !rounded.defined()) {
      rounded = weight_.to(hidden_.dtype());
    }
    const Tensor w = dense(rounded.defined() ? rounded : weight_);
    Tensor loss = empty(labels_.shape(), wide_dtype(hidden_.dtype()));
    const Tensor row_lse = empty(labels_.shape(), loss.dtype());
    for_chunks(dense(hidden_), w, labels_.numel(), chunk_rows,
               [&](const Tensor& logits, int64_t begin, int64_t end) {
                 form.apply_to(logits);
                 Tensor loss_part = entries_between(loss, begin, end);
                 Tensor lse_part = entries_between(row_lse, begin, end);
                 rows.forward(logits, entries_between(labels_, begin, end), loss_part, lse_part);
               });
    lse.save(row_lse);
    return loss;
  }

  TensorList backward(const Tensor& dy, NeedsGrad needs) const {
    const Tensor y = labels;
    if (grad_enabled()) {
      return composed_gradients(rows, form, hidden, weight, y, dy,
                                [](const Tensor& t) { return t; });
    }
    const Tensor exact = weight;  // notices a change in place also where the copy is used
    const Tensor x = dense(hidden.get());
    const Tensor w = dense(rounded.defined() ? rounded : exact);
    const Tensor dloss = dense(dy);
    const Tensor row_lse = lse;
    const int64_t h = x.shape().back();
    const Tensor dx = needs[0] ? empty_like(x) : Tensor();
    const auto [main_grad, overwrite] =
        needs[1] && x.dtype() != kFloat64 ? main_grad_target(exact) : MainGradTarget{};
    const bool to_main_grad = main_grad.defined();
    Tensor dw = main_grad;
    bool first = overwrite || !to_main_grad;
    if (needs[1] && !to_main_grad) {
      dw = empty(exact.shape(), wide_dtype(exact.dtype()));
    }
    if (dw.defined() && first && y.numel() == 0) {
      fill_with_zeros(dw);
    }
    // The logits were counted in forward.
    const double products = (needs[0] ? 1 : 0) + (needs[1] ? 1 : 0);
    const kernels::CountedWork work(2 * products * static_cast<double>(y.numel()) *
                                    static_cast<double>(w.numel()));
    for_chunks(x, w, y.numel(), chunk_rows, [&](Tensor logits, int64_t begin, int64_t end) {
      const Tensor factor = form.apply_to(logits);
      rows.backward(logits, entries_between(y, begin, end), entries_between(row_lse, begin, end),
                    entries_between(dloss, begin, end), logits);
      LogitForm::pull_back(logits, factor);
      if (needs[0]) {
        multiply_into(logits, false, w, false, 0, rows_between(dx, h, begin, end));
      }
      if (needs[1]) {
        multiply_into(logits, true, rows_between(x, h, begin, end), false, first ? 0 : 1, dw);
        first = false;
      }
    });
    return {dx, to_main_grad || !dw.defined() ? dw : dw.to(exact.dtype()), Tensor()};
  }
};

// The products of exact mode that follow the logits of a chunk, whose rows lie in a LeafOrder.
struct ExactProducts {
  int64_t leaf_rows;
  int64_t run_rows;
  std::vector<kernels::SumRun> vocabulary;  // leaves of the sum over columns of logits

  ExactProducts(const LeafOrder& order, int64_t columns, int64_t leaves)
      : leaf_rows(order.leaf_rows),
        run_rows(order.run_rows),
        vocabulary(tree_runs(columns, leaves)) {}

  // dx [rows, H] of the gradient [rows, V] of the products.
  void to_hidden(const Tensor& gradient, const Tensor& w, const Tensor& dx) const {
    kernels::tree_gemm({.dtype = gradient.dtype(),
                        .c_dtype = dx.dtype(),
                        .m = dx.shape()[0],
                        .n = dx.shape()[1],
                        .k = gradient.shape()[1],
                        .lda = gradient.shape()[1],
                        .ldb = w.shape()[1],
                        .ldc = dx.shape()[1]},
                       vocabulary, gradient.raw(), w.raw(), dx.raw());
  }

  // dw, exact sums [V, H], of whole leaves.
  void to_weight(const Tensor& gradient, const Tensor& x, const Tensor& dw) const {
    std::vector<kernels::SumRun> runs;
    const int64_t rows = x.shape()[0];
    for (int64_t begin = 0; begin < rows; begin += run_rows) {
      const int64_t end = begin + run_rows;
      runs.push_back({.begin = begin, .end = end, .ends_leaf = end % leaf_rows == 0});
    }
    kernels::exact_sum_gemm({.dtype = gradient.dtype(),
                             .trans_a = true,
                             .m = dw.shape()[0],
                             .n = dw.shape()[1],
                             .k = rows,
                             .lda = gradient.shape()[1],
                             .ldb = x.shape()[1],
                             .ldc = dw.shape()[1]},
                            runs, gradient.raw(), x.raw(), dw.data<double>());
  }
};

// The sum of the rows' losses, weighed. All that backward can add is one factor, so forward makes
// both gradients while it has the logits of a chunk (Hsu et al. 2024, "Liger Kernel").
struct LinearCrossEntropySum {
  static constexpr OpName name = "linear_cross_entropy_sum";
  CrossEntropyRows rows;
  LogitForm form;
  int64_t chunk_rows;
  Tensor rounded;
  Tensor row_weights;  // wide_dtype of hidden
  Tensor losses;       // of each row, if the caller wants them
  int64_t vocabulary_leaves;
  bool makes_dx, makes_dw;
  bool exact = false;
  SavedTensor hidden = {}, weight = {}, labels = {}, dx = {};
  mutable SavedTensor dw = {};

  void for_float64() {
    rounded = {};
    row_weights = row_weights.to(kFloat64);
  }
  // labels_: int64, dense
  Tensor forward(const Tensor& hidden_, const Tensor& weight_, const Tensor& labels_) {
    hidden.save(hidden_);
    weight.save(weight_);
    labels.save(labels_);
    const DType wide = row_weights.dtype();
    const Tensor w = dense(rounded.defined() ? rounded : weight_.to(hidden_.dtype()));
    rounded = {};  // only forward computes with it
    exact = in_exact() && wide == kFloat32;
    if (exact) {
      return exact_forward(dense(hidden_), w, labels_);
    }
    const int64_t h = hidden_.shape().back();
    const Tensor x = dense(hidden_);
    // Not rounded before the factor is known.
    const Tensor x_gradient = makes_dx ? empty(x.shape(), wide) : Tensor();
    Tensor w_gradient;
    if (makes_dw) {
      const MemoryKindGuard kind(MemoryKind::kGradient);
      w_gradient = empty(weight_.shape(), wide);
      if (labels_.numel() == 0) {
        fill_with_zeros(w_gradient);
      }
    }
    const Tensor row_losses = losses.defined() ? losses : empty(labels_.shape(), wide);
    losses = {};
    over_chunks(
        x, w, {labels_, row_weights, row_losses}, chunk_rows,
        [&](const Tensor& gradient, int64_t begin, int64_t end) {
          multiply_into(gradient, false, w, false, 0, rows_between(x_gradient, h, begin, end));
        },
        [&](const Tensor& gradient, int64_t begin, int64_t end) {
          multiply_into(gradient, true, rows_between(x, h, begin, end), false, begin == 0 ? 0 : 1,
                        w_gradient);
        });
    dx.save(x_gradient);
    dw.save(w_gradient);
    return sum(mul(row_losses, row_weights));
  }

  struct RowNumbers {
    Tensor labels;
    Tensor weights;
    Tensor losses;  // written
  };

  // The losses of the rows, and of each chunk to_hidden and to_weight(gradient of the products,
  // begin, end), as far as they are wanted.
  template <class ToHidden, class ToWeight>
  void over_chunks(const Tensor& x,
                   const Tensor& w,
                   const RowNumbers& numbers,
                   int64_t rows_at_once,
                   const ToHidden& to_hidden,
                   const ToWeight& to_weight) const {
    const int64_t count = numbers.labels.numel();
    const Tensor lse = empty({std::min(rows_at_once, count)}, row_weights.dtype());
    for_chunks(x, w, count, rows_at_once, [&](Tensor logits, int64_t begin, int64_t end) {
      const Tensor y = entries_between(numbers.labels, begin, end);
      Tensor loss_part = entries_between(numbers.losses, begin, end);
      Tensor lse_part = entries_between(lse, 0, end - begin);
      const Tensor factor = form.apply_to(logits);
      rows.forward(logits, y, loss_part, lse_part);
      if (makes_dx || makes_dw) {
        rows.backward(logits, y, lse_part, entries_between(numbers.weights, begin, end), logits);
        LogitForm::pull_back(logits, factor);
      }
      if (makes_dx) {
        to_hidden(logits, begin, end);
      }
      if (makes_dw) {
        to_weight(logits, begin, end);
      }
    });
  }

  // Leaves of tokens are whole in each chunk.
  Tensor exact_forward(const Tensor& x_, const Tensor& w, const Tensor& labels_) {
    const DType wide = row_weights.dtype();
    const int64_t count = labels_.numel();
    const int64_t h = x_.shape().back();
    const LeafOrder order = leaf_order(count);
    const ExactProducts products(order, w.shape()[0], vocabulary_leaves);
    const Tensor x = order.apply(x_.view({count, h}));
    const Tensor y = order.apply(labels_.view({count}));
    const Tensor weights = order.apply(row_weights.view({count}));
    const Tensor x_gradient = makes_dx ? empty({count, h}, wide) : Tensor();
    Tensor w_gradient;
    if (makes_dw) {
      const MemoryKindGuard kind(MemoryKind::kGradient);
      w_gradient = empty(w.shape(), kFloat64);
      kernels::clear(w_gradient.raw(), w_gradient.numel() * size_of(kFloat64));
    }
    // The sums of a weight's gradient are read and written for each chunk: of these, few.
    const int64_t rows_at_once =
        std::max<int64_t>(1, 2 * chunk_rows / order.leaf_rows) * order.leaf_rows;
    const Tensor row_losses = empty({count}, wide);
    over_chunks(
        x, w, {y, weights, row_losses}, rows_at_once,
        [&](const Tensor& gradient, int64_t begin, int64_t end) {
          products.to_hidden(gradient, w, rows_between(x_gradient, h, begin, end));
        },
        [&](const Tensor& gradient, int64_t begin, int64_t end) {
          products.to_weight(gradient, rows_between(x, h, begin, end), w_gradient);
        });
    dx.save(makes_dx ? order.undo(x_gradient).view(x_.shape()) : Tensor());
    dw.save(w_gradient);
    if (losses.defined()) {
      copy_values(order.undo(row_losses).view(labels_.shape()), losses);
      losses = {};
    }
    return sum(mul(row_losses, weights));
  }

  TensorList backward(const Tensor& dy, NeedsGrad needs) const {
    const Tensor x = hidden;
    const Tensor leaf = weight;
    if (grad_enabled()) {
      return composed_gradients(rows, form, x, leaf, labels, dy,
                                [&](const Tensor& t) { return sum(mul(t, row_weights)); });
    }
    TensorList out(3);
    if (needs[0]) {
      out[0] = mul(dx.get(), dy).to(x.dtype());
    }
    if (needs[1] && exact) {
      out[1] = exact_weight_gradient(leaf, dy);
    } else if (needs[1]) {
      const bool own = releases_graph() && dw.is_only_handle();
      Tensor gradient = own ? dw.take() : mul(dw.get(), dy);
      if (own) {
        kernels::scale_inplace(gradient.dtype(), gradient.numel(), dy.item(), gradient.raw());
      }
      out[1] = give_to_main_grad(leaf, gradient) ? gradient : gradient.to(leaf.dtype());
    }
    return out;
  }

 private:
  Tensor exact_weight_gradient(const Tensor& leaf, const Tensor& dy) const {
    const bool own = releases_graph() && dw.is_only_handle();
    Tensor sums = own ? dw.take() : dw.get();
    if (give_exact_sums(leaf, sums, own)) {
      check<RuntimeError>(dy.item() == 1,
                          "linear_cross_entropy: in exact mode the weights of the rows are all "
                          "that a loss is multiplied by; its gradient must be 1, it is ",
                          dy.item());
      return sums;
    }
    const Tensor gradient = empty(leaf.shape(), kFloat32);
    kernels::exact_to_float32(sums.numel(), sums.data<double>(), gradient.data<float>());
    return mul(gradient, dy).to(leaf.dtype());
  }
};

}  // namespace

Tensor linear_cross_entropy(const Tensor& hidden,
                            const Tensor& weight,
                            const Tensor& labels,
                            const LinearCrossEntropyOptions& options) {
  check_defined("linear_cross_entropy", hidden, "hidden", weight, "weight", labels, "labels");
  check_arguments(hidden, weight, labels, options);
  const CrossEntropyOptions& loss = options.loss;
  const CrossEntropyRows rows(logits_shape(hidden, weight), loss);
  const LogitForm form = {options.logit_scale, options.logit_cap};
  const Tensor y = dense(labels.to(kInt64));
  if (!gradients_in_forward(hidden, options)) {
    const Tensor losses = apply_op(
        LinearCrossEntropy{rows, form, options.chunk_rows, options.rounded}, hidden, weight, y);
    watch_versions(losses, {labels});
    return reduce_rows(losses, labels, loss.ignore_index, loss.loss_mask, loss.reduction);
  }
  const Tensor weights =
      dense(row_weights(labels, loss.ignore_index, loss.loss_mask, wide_dtype(hidden.dtype())));
  const auto wants = [](const Tensor& t) { return grad_enabled() && t.requires_grad(); };
  const Tensor total =
      apply_op(LinearCrossEntropySum{rows, form, options.chunk_rows, options.rounded, weights,
                                     options.losses, options.vocabulary_leaves, wants(hidden),
                                     wants(weight)},
               hidden, weight, y);
  watch_versions(total, {labels});
  return loss.reduction == Reduction::kMean ? div(total, sum(weights)) : total;
}

Tensor composed_linear_cross_entropy(const Tensor& hidden,
                                     const Tensor& weight,
                                     const Tensor& labels,
                                     const LinearCrossEntropyOptions& options) {
  check_arguments(hidden, weight, labels, options);
  const Tensor products = linear(hidden, weight.to(hidden.dtype()));
  return cross_entropy(LogitForm{options.logit_scale, options.logit_cap}.is_plain()
                           ? products
                           : soft_cap(products, options.logit_scale, options.logit_cap),
                       labels, options.loss);
}

}  // namespace tapestry

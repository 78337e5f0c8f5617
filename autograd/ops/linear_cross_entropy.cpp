#include <algorithm>

#include "autograd/kernels/gemm.h"
#include "autograd/ops/cross_entropy_rows.h"
#include "autograd/ops/loss.h"
#include "autograd/ops/map.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/rows.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/op.h"
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

// Rows [begin, end) of a contiguous tensor seen as rows of `columns` elements.
Tensor rows_between(const Tensor& t, int64_t columns, int64_t begin, int64_t end) {
  return alias(t, {end - begin, columns}, {columns, 1}, t.offset() + begin * columns);
}
Tensor entries_between(const Tensor& t, int64_t begin, int64_t end) {
  return alias(t, {end - begin}, {1}, t.offset() + begin);
}

// out = a b (beta 0) or out += a b (beta 1) for contiguous matrices, where trans_* says that one is
// stored as its transpose.
void multiply(
    const Tensor& a, bool trans_a, const Tensor& b, bool trans_b, double beta, const Tensor& out) {
  const int64_t m = out.shape()[0];
  const int64_t n = out.shape()[1];
  const int64_t k = a.shape()[trans_a ? 0 : 1];
  kernels::gemm(a.dtype(), out.dtype(), trans_a, trans_b, m, n, k, 1, a.raw(), a.shape()[1],
                b.raw(), b.shape()[1], beta, out.raw(), n);
}

// One loss per row.
struct LinearCrossEntropy {
  static constexpr std::string_view name = "linear_cross_entropy";
  CrossEntropyRows rows;
  int64_t chunk_rows;
  Tensor rounded;  // the weight in hidden's dtype, where that differs
  SavedTensor hidden = {}, weight = {}, labels = {}, lse = {};

  // labels_: int64
  Tensor forward(const Tensor& hidden_, const Tensor& weight_, const Tensor& labels_) {
    const Tensor y = dense(labels_);
    hidden.save(hidden_);
    weight.save(weight_);
    labels.save(y);
    if (weight_.dtype() != hidden_.dtype() && !rounded.defined()) {
      rounded = weight_.to(hidden_.dtype());
    }
    const Tensor x = dense(hidden_);
    const Tensor w = dense(rounded.defined() ? rounded : weight_);
    Tensor loss = empty(y.shape(), wide_dtype(x.dtype()));
    const Tensor row_lse = empty(y.shape(), loss.dtype());
    for_chunks(x, w, y,
               [&](const Tensor& logits, const Tensor& y_part, int64_t begin, int64_t end) {
                 Tensor loss_part = entries_between(loss, begin, end);
                 Tensor lse_part = entries_between(row_lse, begin, end);
                 rows.forward(logits, y_part, loss_part, lse_part);
               });
    lse.save(row_lse);
    return loss;
  }

  TensorList backward(const Tensor& dy, NeedsGrad needs) const {
    const Tensor y = labels;
    if (grad_enabled()) {
      const auto twin = [&](const TensorList& in) {
        return rows.composed(linear(in[0], in[1].to(in[0].dtype())), y);
      };
      const TensorList d = vjp(twin, dy, {hidden, weight});
      return {d[0], d[1], Tensor()};
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
      copy_values(broadcast_view(scalar(0, dw.dtype()), dw.shape()), dw);
    }
    for_chunks(x, w, y, [&](Tensor logits, const Tensor& y_part, int64_t begin, int64_t end) {
      rows.backward(logits, y_part, entries_between(row_lse, begin, end),
                    entries_between(dloss, begin, end), logits);
      if (needs[0]) {
        multiply(logits, false, w, false, 0, rows_between(dx, h, begin, end));
      }
      if (needs[1]) {
        multiply(logits, true, rows_between(x, h, begin, end), false, first ? 0 : 1, dw);
        first = false;
      }
    });
    return {dx, to_main_grad || !dw.defined() ? dw : dw.to(exact.dtype()), Tensor()};
  }

 private:
  // Calls f(logits of the chunk, its labels, begin, end) chunk by chunk.
  template <class F>
  void for_chunks(const Tensor& x, const Tensor& w, const Tensor& y, const F& f) const {
    const int64_t count = y.numel();
    const int64_t h = x.shape().back();
    const int64_t vocabulary = w.shape()[0];
    const MemoryKindGuard kind(MemoryKind::kWorkspace);
    const Tensor space = empty({std::min(count, chunk_rows), vocabulary}, x.dtype());
    for (int64_t begin = 0; begin < count; begin += chunk_rows) {
      const int64_t end = std::min(count, begin + chunk_rows);
      const Tensor logits = rows_between(space, vocabulary, 0, end - begin);
      multiply(rows_between(x, h, begin, end), false, w, true, 0, logits);
      f(logits, entries_between(y, begin, end), begin, end);
    }
  }
};

}  // namespace

Tensor linear_cross_entropy(const Tensor& hidden,
                            const Tensor& weight,
                            const Tensor& labels,
                            const LinearCrossEntropyOptions& options) {
  check_arguments(hidden, weight, labels, options);
  const CrossEntropyOptions& loss = options.loss;
  const CrossEntropyRows rows(logits_shape(hidden, weight), loss);
  const Tensor losses = apply_op(LinearCrossEntropy{rows, options.chunk_rows, options.rounded},
                                 hidden, weight, labels.to(kInt64));
  return reduce_rows(losses, labels, loss.ignore_index, loss.loss_mask, loss.reduction);
}

Tensor composed_linear_cross_entropy(const Tensor& hidden,
                                     const Tensor& weight,
                                     const Tensor& labels,
                                     const LinearCrossEntropyOptions& options) {
  check_arguments(hidden, weight, labels, options);
  return cross_entropy(linear(hidden, weight.to(hidden.dtype())), labels, options.loss);
}

}  // namespace tapestry

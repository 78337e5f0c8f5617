#include "parallel_core/tensor_parallel/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/kernels/losses/cross_entropy.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/cross_entropy_rows.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/loss.h"
#include "autograd/ops/map.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/rows.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/softmax.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/tensor_parallel/mappings.h"

namespace tapestry {

namespace {

constexpr int64_t kIgnoreIndex = -100;
constexpr int64_t kElsewhere = -1;  // label of a column that another rank has

struct SplitCrossEntropy {
  static constexpr OpName name = "vocab_parallel_cross_entropy";
  ProcessGroup* group;
  VocabularyShard shard;
  int64_t vocabulary;
  double smoothing;
  SavedTensor logits = {}, labels = {}, lse = {};

  // labels_: int64, of the whole vocabulary
  Tensor forward(const Tensor& logits_, const Tensor& labels_) {
    const Tensor x = dense(logits_);
    const Tensor all = dense(labels_);
    const Tensor own = own_labels(all);
    logits.save(logits_);
    labels.save(own);
    Tensor loss = empty(all.shape(), wide_dtype(x.dtype()));
    const Tensor row_lse = empty_like(loss);
    if (in_exact()) {
      combine_exactly(x, own, loss, row_lse);
    } else if (loss.dtype() == kFloat64) {
      combine<double>(x, all, own, loss, row_lse);
    } else {
      combine<float>(x, all, own, loss, row_lse);
    }
    lse.save(row_lse);
    return loss;
  }

  TensorList backward(const Tensor& dy, NeedsGrad /*needs*/) const {
    const Tensor own = labels;
    if (grad_enabled()) {
      const auto twin = [&](const TensorList& in) { return composed(in[0], own); };
      return {vjp(twin, dy, {logits})[0], Tensor()};
    }
    const bool disposable = releases_graph() && logits.is_only_handle();
    const Tensor kept = logits;
    const Tensor x = dense(kept);
    Tensor dx = disposable || x.raw() != kept.raw() ? x : empty_like(x);
    const Tensor row_lse = lse;
    const Tensor dloss = dense(dy);
    if (shard.valid == 0) {
      copy_values(broadcast_view(scalar(0, dx.dtype()), dx.shape()), dx);
      return {dx, Tensor()};
    }
    kernels::cross_entropy_backward({.shape = shape_of(x, own.numel()),
                                     .logits = x.raw(),
                                     .labels = own.data<int64_t>(),
                                     .lse = row_lse.raw(),
                                     .dloss = dloss.raw(),
                                     .dlogits = dx.raw()});
    if (smoothing > 0) {
      // d/dx of smoothing * (x_label - mean(x)), rows without a label left out.
      Tensor smooth = smoothing_gradient(own, dloss).to(dx.dtype());
      const Tensor valid = piece(dx);
      copy_values(valid + smooth, valid);
    }
    return {dx, Tensor()};
  }

 private:
  Tensor own_labels(const Tensor& all) const {
    Tensor own = empty_like(all);
    const auto* label = all.data<int64_t>();
    auto* out = own.data<int64_t>();
    for (int64_t i = 0; i < all.numel(); ++i) {
      const int64_t row = label[i] - shard.first;
      out[i] = label[i] == kIgnoreIndex ? kIgnoreIndex
                                        : (row >= 0 && row < shard.valid ? row : kElsewhere);
    }
    return own;
  }

  // The valid columns of a tensor like the logits; not recorded.
  Tensor piece(const Tensor& x) const {
    Shape shape = x.shape();
    shape.back() = shard.valid;
    return alias(x, shape, x.strides(), x.offset());
  }

  // Every rank sends its rows' logsumexp, the loss over its own columns where it has the label, and
  // with smoothing the sum of its logits. With L the logsumexp over all ranks and l that of the
  // rank that has the label, the loss is (l - x_label) + (L - l).
  kernels::CrossEntropyShape shape_of(const Tensor& x, int64_t rows) const {
    return {.dtype = x.dtype(),
            .rows = rows,
            .vocab = shard.rows,
            .valid_vocab = shard.valid,
            .ignore_index = kIgnoreIndex};
  }

  template <class C>
  void combine(const Tensor& x,
               const Tensor& all,
               const Tensor& own,
               const Tensor& loss,
               const Tensor& row_lse) const {
    const int64_t n = all.numel();
    const int64_t parts = smoothing > 0 ? 4 : 2;
    const Tensor sent = empty({parts, n}, loss.dtype());
    C* mine = sent.data<C>();
    if (shard.valid > 0) {
      kernels::cross_entropy({.shape = shape_of(x, n),
                              .logits = x.raw(),
                              .labels = own.data<int64_t>(),
                              .loss = mine + n,
                              .lse = mine});
    } else {
      std::fill(mine, mine + n, -std::numeric_limits<C>::infinity());
      std::fill(mine + n, mine + 2 * n, C(0));
    }
    if (smoothing > 0) {
      copy_values(sum(piece(x).to(kFloat64), {-1}).to(loss.dtype()).view({n}),
                  alias(sent, {n}, {1}, sent.offset() + 2 * n));
      for (int64_t i = 0; i < n; ++i) {
        // x_label where it is here
        mine[3 * n + i] = own.data<int64_t>()[i] >= 0 ? mine[i] - mine[n + i] : C(0);
      }
    }
    const Tensor received = empty({group->size(), parts, n}, loss.dtype());
    group->all_gather(received, sent);
    const C* from = received.data<C>();
    const auto* label = all.data<int64_t>();
    C* out = loss.data<C>();
    C* total = row_lse.data<C>();
    for (int64_t i = 0; i < n; ++i) {
      const auto value = [&](int64_t rank, int64_t part) {
        return static_cast<double>(from[(rank * parts + part) * n + i]);
      };
      double largest = -std::numeric_limits<double>::infinity();
      for (int r = 0; r < group->size(); ++r) {
        const double next = value(r, 0);
        largest = next > largest || std::isnan(next) ? next : largest;
      }
      double scaled = 0;
      for (int r = 0; r < group->size(); ++r) {
        scaled += std::isinf(largest) ? 1 : std::exp(value(r, 0) - largest);
      }
      const double all_lse = largest + std::log(scaled);
      total[i] = static_cast<C>(all_lse);
      if (label[i] == kIgnoreIndex) {
        out[i] = 0;
        continue;
      }
      const int64_t owner = label[i] / shard.rows;
      double result = value(owner, 1) + (all_lse - value(owner, 0));
      if (smoothing > 0) {
        double logits_sum = 0;
        for (int r = 0; r < group->size(); ++r) {
          logits_sum += value(r, 2);
        }
        result += smoothing * (value(owner, 3) - logits_sum / static_cast<double>(vocabulary));
      }
      out[i] = static_cast<C>(result);
    }
  }

  // As kernels::cross_entropy() of the whole vocabulary: the ranks' columns are subtrees of its
  // leaves.
  void combine_exactly(const Tensor& x,
                       const Tensor& own,
                       const Tensor& loss,
                       const Tensor& row_lse) const {
    const int64_t ranks = group->size();
    check<ValueError>(kSumLeaves % ranks == 0 && vocabulary == shard.rows * ranks && smoothing == 0,
                      "exact mode: ", ranks, " ranks cannot finish each other's sums over ",
                      vocabulary, " entries of a vocabulary",
                      smoothing > 0 ? " with label "
                                      "smoothing"
                                    : "",
                      "; they must be 1, 2, 4 or 8 and divide it");
    const kernels::CrossEntropyShape shape = shape_of(x, own.numel());
    const Tensor maxima = empty_like(loss);
    kernels::cross_entropy_maxima(shape, x.raw(), maxima.raw());
    group->all_reduce(maxima, ReduceOp::kMax);
    const Tensor sums = empty({own.numel()}, kFloat64);
    kernels::cross_entropy_exponentials({.shape = shape,
                                         .logits = x.raw(),
                                         .maxima = maxima.raw(),
                                         .leaves = kSumLeaves / ranks,
                                         .sums = sums.data<double>()});
    const Tensor all = empty({ranks, own.numel()}, kFloat64);
    group->all_gather(all, sums);
    auto* of_ranks = all.data<double>();
    for (int64_t apart = 1; apart < ranks; apart *= 2) {
      for (int64_t rank = 0; rank < ranks; rank += 2 * apart) {
        for (int64_t i = 0; i < own.numel(); ++i) {
          of_ranks[rank * own.numel() + i] += of_ranks[(rank + apart) * own.numel() + i];
        }
      }
    }
    const Tensor label_logits = empty_like(loss);
    kernels::cross_entropy_label_logits(shape, x.raw(), own.data<int64_t>(), label_logits.raw());
    group->all_reduce(label_logits);  // all but one rank have 0
    kernels::cross_entropy_finish({.shape = shape,
                                   .maxima = maxima.raw(),
                                   .sums = of_ranks,
                                   .label_logits = label_logits.raw(),
                                   .labels = own.data<int64_t>(),
                                   .loss = loss.raw(),
                                   .lse = row_lse.raw()});
  }

  // dloss * smoothing * (onehot - 1 / vocabulary) over the valid columns.
  Tensor smoothing_gradient(const Tensor& own, const Tensor& dloss) const {
    const Tensor counted = ne(own, kIgnoreIndex).to(dloss.dtype());
    const Tensor scale = mul(mul(dloss, counted), smoothing).unsqueeze(-1);
    const Tensor columns = arange(shard.valid);
    const Tensor onehot = eq(own.unsqueeze(-1), columns).to(dloss.dtype());
    return mul(scale, sub(onehot, 1 / static_cast<double>(vocabulary)));
  }

  // The loss in elementary ops, recorded.
  Tensor composed(const Tensor& x_, const Tensor& own) const {
    const Tensor x = slice(widen(x_), -1, 0, shard.valid);
    // Only a shift: without a gradient, and the same on every rank.
    Tensor shift = shard.valid > 0 ? dense_copy(finite_max(x.detach(), {x.dim() - 1}))
                                   : full_like_rows(x, -std::numeric_limits<double>::infinity());
    group->all_reduce(shift, ReduceOp::kMax);
    const auto total = [&](const Tensor& part) {
      return reduce_from_model_parallel_region(part, *group);
    };
    const Tensor exponentials = total(sum(exp(sub(x, shift)), {-1}));
    const Tensor all_lse = add(log(exponentials), shift.squeeze(-1));
    const Tensor target = total(pick_columns(x, own));
    Tensor loss = sub(all_lse, mul(target, 1 - smoothing));
    if (smoothing > 0) {
      loss = sub(loss, mul(total(sum(x, {-1})), smoothing / static_cast<double>(vocabulary)));
    }
    return masked_fill(loss, eq(own, kIgnoreIndex), 0);
  }

  static Tensor full_like_rows(const Tensor& x, double value) {
    Shape shape = x.shape();
    shape.back() = 1;
    return full(shape, value, x.dtype());
  }
};

}  // namespace

Tensor VocabParallelCrossEntropy::forward(const Tensor& logits,
                                          const Tensor& labels,
                                          double label_smoothing) const {
  const CrossEntropyOptions options = {.ignore_index = kIgnoreIndex,
                                       .reduction = Reduction::kNone,
                                       .label_smoothing = label_smoothing};
  if (layout_.size == 1) {
    return cross_entropy(logits, labels, options);
  }
  const VocabularyShard shard = vocabulary_shard(vocabulary_, layout_.rank, layout_.size);
  check<ValueError>(logits.dim() > 0 && logits.shape().back() == shard.rows,
                    "cross_entropy: ", describe(logits), " must have the ", shard.rows,
                    " columns that a rank has of ", vocabulary_);
  Shape whole = logits.shape();
  whole.back() = vocabulary_;
  check_cross_entropy("cross_entropy", whole, logits.dtype(), labels, options);
  return apply_op(SplitCrossEntropy{layout_.group, shard, vocabulary_, label_smoothing}, logits,
                  labels.to(kInt64));
}

Tensor vocab_parallel_logsumexp(const Tensor& logits,
                                int64_t vocabulary,
                                const TensorParallelLayout& layout) {
  const Tensor x = widen(logits);
  if (layout.size == 1) {
    return logsumexp(x, {-1});
  }
  const VocabularyShard shard = vocabulary_shard(vocabulary, layout.rank, layout.size);
  check<ValueError>(x.dim() > 0 && x.shape().back() == shard.rows,
                    "vocab_parallel_logsumexp: ", describe(logits), " must have the ", shard.rows,
                    " columns that a rank has of ", vocabulary);
  // A rank behind the end of a small vocabulary has padding alone.
  const Tensor own = shard.valid > 0 ? logsumexp(slice(x, -1, 0, shard.valid), {-1}, true)
                                     : sum(mul(x, 0), {-1}, true) + -1e30;
  return logsumexp(gather_from_model_parallel_region(own, -1, *layout.group), {-1});
}

}  // namespace tapestry

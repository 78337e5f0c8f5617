// Samples of losses and of the embedding.
#include <utility>

#include "autograd/ops/embedding.h"
#include "autograd/ops/loss.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/ops/op_samples.h"

namespace tapestry {

namespace {

auto linear_cross_entropy_with(const CrossEntropyOptions& loss, int64_t chunk_rows) {
  return [=](const Tensor& hidden, const Tensor& weight, const Tensor& labels) {
    return linear_cross_entropy(hidden, weight, labels, {.loss = loss, .chunk_rows = chunk_rows});
  };
}

// Of logits that are scaled and bounded before the loss sees them.
auto linear_cross_entropy_of(Reduction reduction, double scale, double cap) {
  return [=](const Tensor& hidden, const Tensor& weight, const Tensor& labels) {
    return linear_cross_entropy(hidden, weight, labels,
                                {.loss = {.reduction = reduction},
                                 .chunk_rows = 2,
                                 .logit_scale = scale,
                                 .logit_cap = cap});
  };
}

}  // namespace

OP_SAMPLES(linear_cross_entropy) {
  rounds(2, 3);  // logits are rounded
  // Chunks that divide the rows, that do not, and one that holds them all.
  for (const int64_t chunk_rows : {2, 3, 100}) {
    add(linear_cross_entropy_with({.reduction = Reduction::kNone}, chunk_rows),
        {randn({4, 3}), randn({5, 3}), integers({4}, 5)});
  }
  const CrossEntropyOptions all = {
      .ignore_index = 2, .reduction = Reduction::kNone, .label_smoothing = 0.2, .valid_vocab = 4};
  add(linear_cross_entropy_with(all, 4), {randn({2, 3, 4}), randn({6, 4}), integers({2, 3}, 4)});
  const auto fn = linear_cross_entropy_with({.reduction = Reduction::kNone}, 2);
  add(fn, {randn({3, 4}), randn({5, 4}), integers({3}, 5)}).differentiable({0});
  add(fn, {randn({3, 4}), randn({5, 4}), integers({3}, 5)}).differentiable({1});
  add(fn, {randn({0, 4}), randn({5, 4}), integers({0}, 5)});
  add(fn, {randn({4}), randn({5, 4}), integers({}, 5)});
  add_large(linear_cross_entropy_with({.reduction = Reduction::kNone}, 64),
            {randn({150, 64}), randn({300, 64}), integers({150}, 300)})
      .rounds(2, 8)  // of logits up to 30 the rounding is a larger part of their exponential
      .threads_may_round();
  for (const auto& [scale, cap] : {std::pair{0.25, 0.0}, {1.0, 1.5}, {-2.0, 0.7}}) {
    add(linear_cross_entropy_of(Reduction::kNone, scale, cap),
        {randn({5, 3}), randn({4, 3}), integers({5}, 4)});
  }
  add_error<ValueError>(linear_cross_entropy_of(Reduction::kNone, 1, -1),
                        {randn({3, 4}), randn({5, 4}), integers({3}, 5)}, "logit_cap");
  add_error<ValueError>(linear_cross_entropy_with({}, 0),
                        {randn({3, 4}), randn({5, 4}), integers({3}, 5)}, "chunk_rows");
  add_error<ValueError>(fn, {randn({3, 4}), randn({5, 3}), integers({3}, 5)}, "[5, 3]");
  add_error<ValueError>(fn, {randn({3, 4}), randn({5}), integers({3}, 5)}, "[V, H]");
  add_error<ValueError>(fn, {randn({3, 4}), randn({5, 4}), integers({4}, 5)}, "labels [4]");
  add_error<IndexError>(fn, {randn({3, 4}), randn({2, 4}), full({3}, 2, kInt64)}, "label 2");
  add_error<TypeError>(fn, {randn({3, 4}).to(kFloat32), randn({5, 4}), integers({3}, 5)},
                       "float64");
}

OP_SAMPLES(linear_cross_entropy_sum) {
  rounds(2, 3);  // logits are rounded
  for (const Reduction reduction : {Reduction::kSum, Reduction::kMean}) {
    for (const int64_t chunk_rows : {2, 3, 100}) {
      add(linear_cross_entropy_with({.reduction = reduction}, chunk_rows),
          {randn({4, 3}), randn({5, 3}), integers({4}, 5)});
    }
    const CrossEntropyOptions all = {
        .ignore_index = 2, .reduction = reduction, .label_smoothing = 0.2, .valid_vocab = 4};
    add(linear_cross_entropy_with(all, 4), {randn({2, 3, 4}), randn({6, 4}), integers({2, 3}, 4)});
  }
  for (const auto& [scale, cap] : {std::pair{0.25, 0.0}, {1.0, 1.5}, {-2.0, 0.7}}) {
    for (const Reduction reduction : {Reduction::kSum, Reduction::kMean}) {
      add(linear_cross_entropy_of(reduction, scale, cap),
          {randn({5, 3}), randn({4, 3}), integers({5}, 4)});
    }
  }
  const auto fn = linear_cross_entropy_with({.reduction = Reduction::kSum}, 2);
  add(fn, {randn({3, 4}), randn({5, 4}), integers({3}, 5)}).differentiable({0});
  add(fn, {randn({3, 4}), randn({5, 4}), integers({3}, 5)}).differentiable({1});
  add(fn, {randn({0, 4}), randn({5, 4}), integers({0}, 5)});
  add(fn, {randn({4}), randn({5, 4}), integers({}, 5)});
  add_large(linear_cross_entropy_with({.reduction = Reduction::kSum}, 64),
            {randn({150, 64}), randn({300, 64}), integers({150}, 300)})
      .rounds(2, 8)  // of logits up to 30 the rounding is a larger part of their exponential
      .threads_may_round();
}

OP_SAMPLES(cross_entropy) {
  const auto with = [](const CrossEntropyOptions& options) {
    return [=](const Tensor& logits, const Tensor& labels) {
      return cross_entropy(logits, labels, options);
    };
  };
  for (const Reduction reduction : {Reduction::kNone, Reduction::kSum, Reduction::kMean}) {
    add(with({.reduction = reduction}), {randn({4, 5}), integers({4}, 5)});
    add(with({.ignore_index = 2, .reduction = reduction}), {randn({2, 3, 4}), integers({2, 3}, 4)});
    add(with({.reduction = reduction, .label_smoothing = 0.2}), {randn({3, 4}), integers({3}, 4)});
    add(with({.reduction = reduction, .valid_vocab = 4}), {randn({3, 6}), integers({3}, 4)});
    add(with({.ignore_index = 1, .reduction = reduction, .label_smoothing = 0.1, .valid_vocab = 3}),
        {randn({5, 4}), integers({5}, 3)});
  }
  add(with({}), {randn({5}), integers({}, 5)});
  add(with({}), {randn({3, 1}), integers({3}, 1)});
  add(with({.reduction = Reduction::kSum}), {randn({0, 4}), integers({0}, 4)});
  // The weights of rows may want a gradient themselves.
  const auto weighed = [](const Tensor& logits, const Tensor& labels, const Tensor& mask) {
    return cross_entropy(logits, labels, {.loss_mask = mask});
  };
  add(weighed, {randn({2, 3, 4}), integers({2, 3}, 4), positive({2, 3})});
  add(weighed, {randn({2, 3}), integers({2}, 3), positive({2})}).differentiable({0});
  add_large(with({}), {randn({100, 500}), integers({100}, 500)});
  add_large(with({.label_smoothing = 0.1, .valid_vocab = 490}),
            {randn({100, 500}), integers({100}, 490)});

  add_error<ValueError>(with({}), {randn({4, 5}), integers({3}, 5)}, "labels [3]");
  add_error<ValueError>(with({}), {randn({}), integers({}, 5)}, "axis of columns");
  add_error<ValueError>(with({.label_smoothing = 1.0}), {randn({4, 5}), integers({4}, 5)},
                        "label_smoothing");
  add_error<ValueError>(with({.label_smoothing = -0.1}), {randn({4, 5}), integers({4}, 5)},
                        "label_smoothing");
  add_error<ValueError>(with({.valid_vocab = 6}), {randn({4, 5}), integers({4}, 5)}, "valid_vocab");
  add_error<ValueError>(with({.valid_vocab = 0}), {randn({4, 5}), integers({4}, 5)}, "valid_vocab");
  add_error<ValueError>(with({.valid_vocab = -2}), {randn({4, 5}), integers({4}, 5)},
                        "valid_vocab");
  add_error<ValueError>(weighed, {randn({4, 5}), integers({4}, 5), randn({1})}, "loss_mask [1]");
  add_error<TypeError>(with({}), {randn({4, 5}), randn({4})}, "int32 or int64");
  add_error<TypeError>(with({}), {integers({4, 5}, 3), integers({4}, 5)}, "floating");
}

OP_SAMPLES(embedding) {
  const auto fn = [](const Tensor& weight, const Tensor& ids) { return embedding(weight, ids); };
  for (const Shape& s : {Shape{}, Shape{1}, Shape{6}, Shape{2, 3}, Shape{0}}) {
    add(fn, {randn({4, 3}), integers(s, 4)});
  }
  add(fn, {randn({4, 0}), integers({3}, 4)});
  add_large(fn, {randn({50, 80}), integers({9, 70}, 50)});
  add_error<ValueError>(fn, {randn({4}), integers({3}, 4)}, "[V, H]");
  add_error<TypeError>(fn, {randn({4, 3}), randn({3})}, "int32 or int64");
  add_error<TypeError>(fn, {integers({4, 3}, 2), integers({3}, 4)}, "floating");
}

OP_SAMPLES(embedding_backward) {
  // The op appears where the gradient of an embedding is itself recorded.
  const auto of = [](int64_t vocabulary) {
    return [=](const Tensor& ids, const Tensor& dy) {
      const EnableGradGuard guard;
      const Tensor weight = dy.detach()
                                .reshape({-1, dy.shape().back()})
                                .slice(0, 0, 1)
                                .expand({vocabulary, dy.shape().back()})
                                .clone()
                                .set_requires_grad();
      return grad(embedding(weight, ids), {weight}, dy, {.create_graph = true});
    };
  };
  add(of(4), {integers({5}, 4), randn({5, 3})});
  add(of(3), {integers({2, 3}, 3), randn({2, 3, 2})});
  add_large(of(50), {integers({630}, 50), randn({630, 80})});
}

}  // namespace tapestry

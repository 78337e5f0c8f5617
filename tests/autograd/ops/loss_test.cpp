#include "autograd/ops/loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/inplace.h"
#include "autograd/ops/random.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/softmax.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/gradcheck.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "tests/autograd/ops/expect_close.h"
#include "tests/message_of.h"

namespace tapestry {
namespace loss_test {
namespace {

using ::testing::HasSubstr;

Tensor input(const Shape& shape, uint64_t stream, DType dtype = kFloat64) {
  return normal(0, 2, shape, kFloat64, RandomKey{6, stream, 0}).to(dtype);
}
Tensor labels_below(int64_t high, const Shape& shape) {
  return randint(0, high, shape, kInt64, RandomKey{6, 1000, 0});
}

void expect_equals_twin(const Tensor& logits,
                        const Tensor& labels,
                        const CrossEntropyOptions& options) {
  const Tensor a = logits.detach().set_requires_grad();
  const Tensor b = logits.detach().set_requires_grad();
  const Tensor fused = cross_entropy(a, labels, options);
  const Tensor twin = composed_cross_entropy(b, labels, options);
  expect_close(fused, twin, 1e-13);
  const Tensor dy = input(fused.shape(), 50);
  expect_close(grad(fused, {a}, dy)[0], grad(twin, {b}, dy)[0], 1e-13);
}

TEST(CrossEntropy, FusedFormEqualsItsTwin) {
  const Tensor logits = input({3, 5, 17}, 1);
  const Tensor labels = labels_below(13, {3, 5});
  const Tensor mask = bernoulli(0.7, {3, 5}, RandomKey{6, 3, 0});
  for (const Reduction reduction : {Reduction::kNone, Reduction::kSum, Reduction::kMean}) {
    expect_equals_twin(logits, labels, {.reduction = reduction});
    expect_equals_twin(logits, labels, {.ignore_index = 4, .reduction = reduction});
    expect_equals_twin(logits, labels, {.reduction = reduction, .loss_mask = mask});
    expect_equals_twin(logits, labels,
                       {.ignore_index = 4,
                        .reduction = reduction,
                        .loss_mask = mask.to(kFloat32),
                        .label_smoothing = 0.3,
                        .valid_vocab = 13});
  }
  expect_equals_twin(logits.permute({1, 0, 2}), labels.t(), {});
  expect_equals_twin(input({17, 4}, 2).t(), labels_below(17, {4}).to(kInt32), {});
}

TEST(CrossEntropy, IsMinusTheLogarithmOfTheProbability) {
  const Tensor logits = input({4, 6}, 1);
  const Tensor labels = labels_below(6, {4});
  const Tensor log_p = log_softmax(logits, -1);
  const Tensor rows = cross_entropy(logits, labels, {.reduction = Reduction::kNone});
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(rows.at({i}), -log_p.at({i, static_cast<int64_t>(labels.at({i}))}), 1e-14);
  }
  // Smoothing mixes in the mean over all columns.
  const Tensor smooth =
      cross_entropy(logits, labels, {.reduction = Reduction::kNone, .label_smoothing = 0.25});
  expect_close(smooth, sub(mul(rows, 0.75), mul(mean(log_p, {-1}), 0.25)), 1e-14);
}

TEST(CrossEntropy, PaddingOfTheVocabularyDoesNotCount) {
  const Tensor narrow = input({3, 5}, 1);
  const Padding padding[] = {{0, 0}, {0, 2}};
  // What stands in the padding may be anything.
  const Tensor wide = pad(narrow, padding, 1e4).set_requires_grad();
  const Tensor labels = labels_below(5, {3});
  const Tensor loss = cross_entropy(wide, labels, {.valid_vocab = 5});
  EXPECT_DOUBLE_EQ(loss.item(), cross_entropy(narrow, labels).item());
  expect_close(slice(grad(loss, {wide})[0], 1, 5, 7), zeros({3, 2}, kFloat64), 0);
}

TEST(CrossEntropy, IgnoredRowsHaveNoPart) {
  Tensor logits = input({3, 4}, 1);
  const Tensor labels = tensor<int64_t>({1, -100, 2}, {3});
  const Tensor kept = cat({slice(logits, 0, 0, 1), slice(logits, 0, 2, 3)});
  EXPECT_DOUBLE_EQ(cross_entropy(logits, labels).item(),
                   cross_entropy(kept, tensor<int64_t>({1, 2}, {2})).item());
  // Not even if their logits are no numbers.
  logits.data<double>()[4] = std::numeric_limits<double>::quiet_NaN();
  logits.set_requires_grad();
  const Tensor loss = cross_entropy(logits, labels);
  EXPECT_TRUE(std::isfinite(loss.item()));
  expect_close(select(grad(loss, {logits})[0], 0, 1), zeros({4}, kFloat64), 0);
}

TEST(CrossEntropy, NothingLeft) {
  const Tensor logits = input({2, 3}, 1);
  const Tensor ignored = full({2}, -100, kInt64);
  EXPECT_EQ(cross_entropy(logits, ignored, {.reduction = Reduction::kSum}).item(), 0);
  EXPECT_TRUE(std::isnan(cross_entropy(logits, ignored).item()));
  EXPECT_EQ(cross_entropy(zeros({0, 3}), zeros({0}, kInt64), {.reduction = Reduction::kSum}).item(),
            0);
}

TEST(CrossEntropy, LargeLogits) {
  const Tensor logits = tensor<float>({3e38F, 0, -3e38F, 1e4F, -1e4F, 0}, {2, 3});
  const Tensor rows =
      cross_entropy(logits, tensor<int64_t>({0, 1}, {2}), {.reduction = Reduction::kNone});
  EXPECT_EQ(rows.at({0}), 0);
  EXPECT_EQ(rows.at({1}), 2e4);
}

TEST(CrossEntropy, LossesOf16BitLogitsAreFloat32) {
  const Tensor logits = input({5, 40}, 1, kBFloat16).set_requires_grad();
  const Tensor labels = labels_below(40, {5});
  const Tensor loss = cross_entropy(logits, labels, {.label_smoothing = 0.1});
  EXPECT_EQ(loss.dtype(), kFloat32);
  const Tensor wide = logits.detach().to(kFloat64).set_requires_grad();
  const Tensor exact = cross_entropy(wide, labels, {.label_smoothing = 0.1});
  EXPECT_NEAR(loss.item(), exact.item(), 1e-5);
  const Tensor dx = grad(loss, {logits})[0];
  EXPECT_EQ(dx.dtype(), kBFloat16);
  expect_close(dx, grad(exact, {wide})[0], 1e-3);
}

TEST(CrossEntropy, WrongLabelsAreNamed) {
  const Tensor logits = zeros({2, 3, 7});
  const Tensor labels = tensor<int64_t>({0, 1, 2, 3, 7, 5}, {2, 3});
  const std::string message = message_of<IndexError>([&] { cross_entropy(logits, labels); });
  EXPECT_THAT(message, HasSubstr("label 7"));
  EXPECT_THAT(message, HasSubstr("[1, 1]"));
  EXPECT_THAT(message, HasSubstr("[0, 7)"));
  EXPECT_THAT(
      message_of<IndexError>([&] { cross_entropy(logits, labels.to(kInt32), {.valid_vocab = 5}); }),
      HasSubstr("label 7"));
  EXPECT_THROW(cross_entropy(logits, full({2, 3}, -1, kInt64)), IndexError);
  EXPECT_NO_THROW(cross_entropy(logits, full({2, 3}, -1, kInt64), {.ignore_index = -1}));
}

TEST(CrossEntropy, TheGradientIsTheOnlyOtherTensorOfTheLogitsSize) {
  const Tensor logits = zeros({64, 4096}).set_requires_grad();
  const Tensor labels = zeros({64}, kInt64);
  const int64_t size = 64 * 4096 * 4;
  RankContext::current().allocator().reset_peak();
  const int64_t before = memory_stats().current_bytes;
  const Tensor loss = cross_entropy(logits, labels);
  EXPECT_LT(memory_stats().peak_bytes - before, size / 10);
  const Tensor dx = grad(loss, {logits})[0];
  EXPECT_LT(memory_stats().peak_bytes - before, size + size / 10);
}

// Logits that nobody holds: their peak in bytes over what was there before, and the gradient that
// arrives behind them.
struct Disposed {
  int64_t peak;
  Tensor gradient;
};
Disposed peak_of_backward(const Tensor& x, bool hold_logits, bool retain_graph, double smoothing) {
  const Tensor labels = labels_below(4096, {64});
  RankContext::current().allocator().reset_peak();
  const int64_t before = memory_stats().current_bytes;
  Tensor held;
  Tensor loss;
  {
    const Tensor logits = add(x, 1);
    held = hold_logits ? logits : Tensor();
    loss = cross_entropy(logits, labels, {.label_smoothing = smoothing});
  }
  loss.backward({}, retain_graph);
  const int64_t peak = memory_stats().peak_bytes - before;
  if (held.defined()) {
    expect_close(held, add(x, 1), 0);
  }
  const Tensor gradient = x.grad().clone();
  if (retain_graph) {
    x.set_grad({});
    loss.backward();
    expect_close(x.grad(), gradient, 0);
  }
  return {peak, gradient};
}

TEST(CrossEntropy, TheGradientTakesThePlaceOfLogitsThatNobodyHolds) {
  constexpr int64_t kSize = 64 * 4096 * 4;
  for (const double smoothing : {0.0, 0.1}) {
    const auto leaf = [] { return input({64, 4096}, 1, kFloat32).set_requires_grad(); };
    const Disposed plain = peak_of_backward(leaf(), false, false, smoothing);
    EXPECT_LT(plain.peak, kSize + kSize / 10);
    const Disposed held = peak_of_backward(leaf(), true, false, smoothing);
    EXPECT_GE(held.peak, 2 * kSize);
    expect_close(plain.gradient, held.gradient, 0);
    // The graph is run again, so it needs the logits again.
    const Disposed kept = peak_of_backward(leaf(), false, true, smoothing);
    EXPECT_GE(kept.peak, 2 * kSize);
    expect_close(plain.gradient, kept.gradient, 0);
  }
}

TEST(CrossEntropy, LogitsThatAnotherOpKeepsAreLeftAlone) {
  const Tensor x = input({3, 5}, 1).set_requires_grad();
  const Tensor labels = labels_below(5, {3});
  Tensor loss;
  {
    const Tensor logits = add(x, 1);
    const Tensor view = logits.reshape({3, 5});
    // Newest first: the cross entropy is run before square, which keeps the logits too.
    loss = sum(square(logits));
    loss = add(loss, cross_entropy(view, labels));
  }
  loss.backward();
  const Tensor y = x.detach().clone().set_requires_grad();
  const Tensor twin = add(sum(square(add(y, 1))), composed_cross_entropy(add(y, 1), labels));
  expect_close(x.grad(), grad(twin, {y})[0], 1e-13);
}

void expect_linear_equals_twin(const LinearCrossEntropyOptions& options) {
  const Tensor labels = labels_below(13, {3, 5});
  const TensorList a = {input({3, 5, 6}, 1).set_requires_grad(),
                        input({17, 6}, 2).set_requires_grad()};
  const TensorList b = {a[0].detach().set_requires_grad(), a[1].detach().set_requires_grad()};
  const Tensor fused = linear_cross_entropy(a[0], a[1], labels, options);
  const Tensor twin = composed_linear_cross_entropy(b[0], b[1], labels, options);
  expect_close(fused, twin, 1e-13);
  // Rows may be weighed by what follows.
  const Tensor dy = input(fused.shape(), 50);
  const TensorList da = grad(fused, a, dy);
  const TensorList db = grad(twin, b, dy);
  expect_close(da[0], db[0], 1e-13);
  expect_close(da[1], db[1], 1e-13);
}

TEST(LinearCrossEntropy, FusedFormEqualsItsTwin) {
  const Tensor mask = bernoulli(0.7, {3, 5}, RandomKey{6, 3, 0});
  for (const Reduction reduction : {Reduction::kNone, Reduction::kSum, Reduction::kMean}) {
    for (const int64_t chunk_rows : {1, 4, 5, 64}) {
      expect_linear_equals_twin({.loss = {.reduction = reduction}, .chunk_rows = chunk_rows});
      expect_linear_equals_twin({.loss = {.ignore_index = 4,
                                          .reduction = reduction,
                                          .loss_mask = mask,
                                          .label_smoothing = 0.3,
                                          .valid_vocab = 13},
                                 .chunk_rows = chunk_rows});
    }
  }
}

TEST(LinearCrossEntropy, ReducedPrecisionWithAFloat32Weight) {
  const Tensor labels = labels_below(40, {50});
  const Tensor hidden = mul(input({50, 16}, 1), 0.3).to(kBFloat16).set_requires_grad();
  const Tensor weight = mul(input({40, 16}, 2), 0.3).to(kFloat32).set_requires_grad();
  const Tensor loss = linear_cross_entropy(hidden, weight, labels, {.chunk_rows = 16});
  EXPECT_EQ(loss.dtype(), kFloat32);
  const TensorList d = grad(loss, {hidden, weight});
  EXPECT_EQ(d[0].dtype(), kBFloat16);
  EXPECT_EQ(d[1].dtype(), kFloat32);
  const Tensor x = hidden.detach().to(kFloat64).set_requires_grad();
  const Tensor w = weight.detach().to(kBFloat16).to(kFloat64).set_requires_grad();
  const Tensor exact = composed_linear_cross_entropy(x, w, labels);
  const TensorList e = grad(exact, {x, w});
  expect_close(loss, exact, 0.01);
  expect_close(mul(d[0].to(kFloat64), 50), mul(e[0], 50), 0.02);
  expect_close(mul(d[1], 50), mul(e[1], 50), 0.02);
  // A copy that the caller keeps gives the same.
  LinearCrossEntropyOptions with_copy;
  with_copy.chunk_rows = 16;
  with_copy.rounded = weight.detach().to(kBFloat16);
  const Tensor again = linear_cross_entropy(hidden, weight, labels, with_copy);
  EXPECT_EQ(again.item(), loss.item());
  expect_close(grad(again, {weight})[0], d[1], 0);
  with_copy.rounded = weight;
  EXPECT_THROW(linear_cross_entropy(hidden, weight, labels, with_copy), TypeError);
}

TEST(LinearCrossEntropy, NeverHoldsTheLogits) {
  constexpr int64_t kRows = 256;
  constexpr int64_t kVocab = 4096;
  const Tensor hidden = input({kRows, 8}, 1, kFloat32).set_requires_grad();
  const Tensor weight = input({kVocab, 8}, 2, kFloat32).set_requires_grad();
  weight.set_main_grad(zeros({kVocab, 8}));
  const Tensor labels = labels_below(kVocab, {kRows});
  RankContext::current().allocator().reset_peak();
  const int64_t before = memory_stats().current_bytes;
  linear_cross_entropy(hidden, weight, labels, {.chunk_rows = 32}).backward();
  // The logits of a chunk, an eighth of all, the gradient of hidden, rows of numbers, and what the
  // products work in.
  EXPECT_LT(memory_stats().peak_bytes - before, kRows * kVocab * 4 / 4);
  const Tensor twin_weight = weight.detach().clone().set_requires_grad();
  const Tensor twin = composed_linear_cross_entropy(hidden.detach(), twin_weight, labels);
  expect_close(mul(weight.main_grad(), 100), mul(grad(twin, {twin_weight})[0], 100), 1e-5);
}

TEST(NllLoss, EqualsCrossEntropyOfLogSoftmax) {
  const Tensor logits = input({3, 4, 6}, 1);
  const Tensor labels = labels_below(6, {3, 4});
  for (const Reduction reduction : {Reduction::kNone, Reduction::kSum, Reduction::kMean}) {
    expect_close(
        nll_loss(log_softmax(logits, -1), labels, {.ignore_index = 2, .reduction = reduction}),
        cross_entropy(logits, labels, {.ignore_index = 2, .reduction = reduction}), 1e-14);
  }
  const auto fn = [&](const TensorList& in) { return TensorList{nll_loss(in[0], labels)}; };
  EXPECT_TRUE(gradcheck(fn, {logits.clone().set_requires_grad()}));
  // A minus infinity elsewhere in the row is not touched.
  const Tensor log_p = tensor<double>({0, -std::numeric_limits<double>::infinity()}, {1, 2});
  EXPECT_EQ(nll_loss(log_p, zeros({1}, kInt64)).item(), 0);
}

TEST(NllLoss, Errors) {
  EXPECT_THROW(nll_loss(zeros({2, 3}), zeros({3}, kInt64)), ValueError);
  EXPECT_THROW(nll_loss(zeros({2, 3}), zeros({2})), TypeError);
  EXPECT_THROW(nll_loss(zeros({2, 3}), full({2}, 3, kInt64)), IndexError);
}

TEST(MseLoss, ValuesDerivativesAndErrors) {
  const Tensor a = input({2, 3}, 1).set_requires_grad();
  const Tensor b = input({2, 3}, 2).set_requires_grad();
  const Tensor squares = square(sub(a, b));
  expect_close(mse_loss(a, b, Reduction::kNone), squares, 0);
  expect_close(mse_loss(a, b, Reduction::kSum), sum(squares), 1e-15);
  expect_close(mse_loss(a, b), mean(squares), 1e-15);
  const auto fn = [](const TensorList& in) { return TensorList{mse_loss(in[0], in[1])}; };
  EXPECT_TRUE(gradcheck(fn, {a, b}));
  EXPECT_TRUE(gradgradcheck(fn, {a, b}));
  EXPECT_THAT(message_of<ValueError>([&] { mse_loss(a, zeros({3})); }), HasSubstr("[2, 3]"));
  EXPECT_THROW(mse_loss(zeros({2}, kInt64), zeros({2}, kInt64)), TypeError);
}

TEST(BinaryCrossEntropy, ValuesAndDerivatives) {
  const Tensor x = input({4, 3}, 1).set_requires_grad();
  const Tensor y = rand({4, 3}, kFloat64, RandomKey{1, 2, 0});
  const Tensor w = tensor<double>({0.5, 1, 3}, {3});
  const Tensor p = sigmoid(x);
  const Tensor plain = neg(add(mul(y, log(p)), mul(sub(1, y), log(sub(1, p)))));
  const Tensor weighed = neg(add(mul(mul(w, y), log(p)), mul(sub(1, y), log(sub(1, p)))));
  expect_close(binary_cross_entropy_with_logits(x, y, {}, Reduction::kNone), plain, 1e-13);
  expect_close(binary_cross_entropy_with_logits(x, y, w, Reduction::kNone), weighed, 1e-13);
  expect_close(binary_cross_entropy_with_logits(x, y, w), mean(weighed), 1e-13);
  expect_close(binary_cross_entropy_with_logits(x, y, w, Reduction::kSum), sum(weighed), 1e-13);
  for (const Tensor& weight : {Tensor(), w}) {
    const auto fn = [&](const TensorList& in) {
      return TensorList{binary_cross_entropy_with_logits(in[0], in[1], weight)};
    };
    const TensorList inputs = {x, y.detach().set_requires_grad()};
    EXPECT_TRUE(gradcheck(fn, inputs));
    EXPECT_TRUE(gradgradcheck(fn, inputs));
  }
}

TEST(BinaryCrossEntropy, LargeLogitsStayFinite) {
  const Tensor x = tensor<float>({-1000, 1000, 1000}, {3}).set_requires_grad();
  const Tensor y = tensor<float>({1, 1, 0}, {3});
  const Tensor loss = binary_cross_entropy_with_logits(x, y, {}, Reduction::kNone);
  expect_close(loss, tensor<float>({1000, 0, 1000}, {3}), 0);
  expect_close(grad(loss, {x}, ones({3}))[0], tensor<float>({-1, 0, 1}, {3}), 0);
}

TEST(BinaryCrossEntropy, AWeightThatChangesBeforeBackwardIsNamed) {
  const Tensor x = input({4, 3}, 1).set_requires_grad();
  const Tensor w = tensor<double>({0.5, 1, 3}, {3});
  const Tensor loss = binary_cross_entropy_with_logits(x, zeros({4, 3}, kFloat64), w);
  square_(w);
  EXPECT_THAT(message_of<RuntimeError>([&] { loss.backward(); }),
              HasSubstr("was changed in place"));
}

TEST(BinaryCrossEntropy, Errors) {
  const Tensor x = zeros({2, 3});
  EXPECT_THROW(binary_cross_entropy_with_logits(x, zeros({3})), ValueError);
  EXPECT_THROW(binary_cross_entropy_with_logits(x, x, zeros({2})), ValueError);
  EXPECT_THROW(binary_cross_entropy_with_logits(x, x, zeros({4, 2, 3})), ValueError);
  EXPECT_THROW(binary_cross_entropy_with_logits(zeros({2}, kInt64), zeros({2})), TypeError);
}

}  // namespace
}  // namespace loss_test
}  // namespace tapestry

#include "autograd/ops/heads/token_scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/index.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/map.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/random.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/ops/softmax.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/main_grad.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/ops/expect_close.h"

namespace tapestry {
namespace token_scores_op_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kHalfUnit = 0x1p-24;

Tensor input(const Shape& shape, uint64_t stream, double deviation = 1) {
  return normal(0, deviation, shape, kFloat64, RandomKey{8, stream, 0});
}

// Rows of logits as hidden states of a head that passes them on.
RowTokenScores scores_of_logits(const Tensor& logits,
                                const Tensor& labels,
                                const LinearTokenScoresOptions& options = {}) {
  return linear_token_scores(logits, eye(logits.shape().back(), -1, logits.dtype()), labels,
                             options);
}

TEST(LinearTokenScores, AreThoseOfTheLogits) {
  const Tensor hidden = input({2, 7, 6}, 1);
  const Tensor weight = input({600, 6}, 2);  // more than a block of the kernel
  const Tensor labels = randint(0, 600, {2, 7}, kInt64, RandomKey{8, 3, 0});
  const RowTokenScores found =
      linear_token_scores(hidden, weight, labels.to(kInt32), {.temperature = 1.25});
  const Tensor x = linear(hidden, weight);
  const Tensor log_p = log_softmax(x * 0.8, -1);
  const Tensor p = exp(log_p);
  expect_close(found.log_probs, gather(log_p, -1, labels.unsqueeze(-1)).squeeze(-1), 1e-13);
  expect_close(found.entropy, sum(p * log_p, {-1}) * -1.0, 1e-13);
  expect_close(found.logit_means, mean(x, {-1}), 1e-13);
  expect_close(found.square_sums, log(sum(p * p, {-1})), 1e-13);
  expect_close(found.likeliest, zeros({2, 7}, kFloat64), 0);
  expect_close(linear_token_scores(hidden, weight, argmax(x, -1)).likeliest, ones({2, 7}, kFloat64),
               0);
}

TEST(LinearTokenScores, OfEqualLogitsTheFirstIsLikeliest) {
  const Tensor logits = tensor<float>({1, 3, 2, 3}, {1, 4}).expand({4, 4});
  const Tensor labels = tensor<int64_t>({0, 1, 2, 3}, {4});
  expect_close(scores_of_logits(logits, labels).likeliest, tensor<float>({0, 1, 0, 0}, {4}), 0);
  // Far behind, in another block than its equal.
  Tensor wide = zeros({2, 1500});
  wide.data<float>()[700] = wide.data<float>()[1400] = 1;
  wide.data<float>()[1500 + 700] = wide.data<float>()[1500 + 1400] = 1;
  expect_close(scores_of_logits(wide, tensor<int64_t>({700, 1400}, {2})).likeliest,
               tensor<float>({1, 0}, {2}), 0);
}

// float64 tells what float32 logits have.
TEST(LinearTokenScores, Float32IsAsGoodAsItsLogits) {
  // Flat and sharp rows.
  for (const double deviation : {0.1, 3.0, 40.0}) {
    const Tensor logits = input({6, 1100}, 5, deviation).to(kFloat32).set_requires_grad();
    const Tensor exact = logits.detach().to(kFloat64).set_requires_grad();
    Tensor labels = randint(0, 1100, {6}, kInt64, RandomKey{8, 6, 0});
    copy_values(argmax(exact.slice(0, 0, 3), -1), labels.slice(0, 0, 3));
    const RowTokenScores found = scores_of_logits(logits, labels);
    const RowTokenScores wanted = scores_of_logits(exact, labels);
    // Each is rounded once; exponentials are right to 2e-7.
    for (const auto& [a, b] : {std::pair{found.log_probs, wanted.log_probs},
                               {found.entropy, wanted.entropy},
                               {found.logit_means, wanted.logit_means},
                               {found.square_sums, wanted.square_sums}}) {
      expect_close(a, b, 8 * kHalfUnit);
    }
    const Tensor ones_like = ones({6});
    for (const bool of_entropy : {false, true}) {
      const Tensor dx = grad(of_entropy ? found.entropy : found.log_probs, {logits}, ones_like,
                             BackwardOptions{.retain_graph = true})[0];
      const Tensor dx_exact =
          grad(of_entropy ? wanted.entropy : wanted.log_probs, {exact}, ones_like.to(kFloat64),
               BackwardOptions{.retain_graph = true})[0];
      expect_close(dx, dx_exact, 16 * kHalfUnit);
    }
  }
}

TEST(LinearTokenScores, LargeAndInfiniteLogits) {
  const Tensor weight = tensor<float>({3e38F, 0, -3e38F}, {3, 1}).set_requires_grad();
  const Tensor hidden = ones({2, 1});
  const RowTokenScores large =
      linear_token_scores(hidden, weight, tensor<int64_t>({0, 1}, {2}), {});
  expect_close(large.log_probs, tensor<float>({0, -3e38F}, {2}), 0);
  expect_close(large.entropy, zeros({2}), 0);
  expect_close(grad(sum(large.log_probs + large.entropy), {weight})[0],
               tensor<float>({-1, 1, 0}, {3, 1}), 0);
  // What a program rules out has no part in the entropy.
  const Tensor without = tensor<float>({-kInfinity, 1, 1}, {3, 1}).set_requires_grad();
  const RowTokenScores rest = linear_token_scores(ones({1, 1}), without, full({1}, 2, kInt64));
  const auto ln2 = static_cast<float>(std::log(2.0));
  expect_close(rest.log_probs, full({1}, -ln2), kHalfUnit);
  expect_close(rest.entropy, full({1}, ln2), kHalfUnit);
  expect_close(rest.square_sums, full({1}, -ln2), kHalfUnit);
  expect_close(grad(sum(rest.log_probs + rest.entropy), {without})[0],
               tensor<float>({0, -0.5F, 0.5F}, {3, 1}), 4 * kHalfUnit);
}

TEST(LinearTokenScores, RowsThatAreLeftOutMayHoldAnything) {
  const Tensor weight = input({9, 4}, 2).to(kFloat32).set_requires_grad();
  const Tensor base = input({6, 4}, 1).to(kFloat32);
  const Tensor labels = tensor<int64_t>({1, -100, 2, -100, -100, 8}, {6});
  const Tensor rows = tensor<int64_t>({0, 2, 5}, {3});
  const Tensor spoilt =
      masked_fill(base, eq(labels, -100).unsqueeze(-1), std::numeric_limits<double>::quiet_NaN())
          .detach()
          .set_requires_grad();
  const Tensor few = index_select(base, 0, rows).detach().set_requires_grad();
  const RowTokenScores found = linear_token_scores(spoilt, weight, labels, {.chunk_rows = 2});
  const RowTokenScores wanted =
      linear_token_scores(few, weight, index_select(labels, 0, rows), {.chunk_rows = 2});
  for (const auto& [a, b] : {std::pair{found.log_probs, wanted.log_probs},
                             {found.entropy, wanted.entropy},
                             {found.logit_means, wanted.logit_means},
                             {found.square_sums, wanted.square_sums}}) {
    expect_close(index_select(a, 0, rows), b, 0);
    expect_close(masked_fill(a, ne(labels, -100), 0), zeros({6}), 0);
  }
  const TensorList d = grad(sum(found.log_probs * found.entropy), {spoilt, weight});
  const TensorList d_wanted = grad(sum(wanted.log_probs * wanted.entropy), {few, weight});
  expect_close(index_select(d[0], 0, rows), d_wanted[0], 0);
  expect_close(masked_fill(d[0], ne(labels, -100).unsqueeze(-1), 0), zeros({6, 4}), 0);
  expect_close(d[1], d_wanted[1], 0);
}

TEST(LinearTokenScores, AddsToMainGrad) {
  const Tensor weight = input({5, 4}, 2).to(kFloat32).set_requires_grad();
  const Tensor hidden = input({7, 4}, 1).to(kFloat32);
  const Tensor labels = randint(0, 5, {7}, kInt64, RandomKey{8, 7, 0});
  const auto pass = [&](const Tensor& of) {
    const RowTokenScores s = linear_token_scores(hidden, weight, of, {.chunk_rows = 3});
    sum(s.log_probs + s.entropy * 2).backward();
  };
  pass(labels);
  const Tensor once = weight.grad().clone();
  weight.set_grad({});
  attach_main_grad(weight, kFloat32);
  const Tensor none = full({7}, -100, kInt64);
  pass(none);  // nothing counts
  expect_close(weight.grad(), zeros({5, 4}), 0);
  pass(labels);
  pass(none);
  pass(labels);
  expect_close(weight.grad(), once * 2, 4 * kHalfUnit);
}

TEST(LinearTokenScores, SaysWhatHasNoGradient) {
  const Tensor hidden = input({3, 4}, 1).set_requires_grad();
  const RowTokenScores s = linear_token_scores(hidden, input({5, 4}, 2), zeros({3}, kInt64));
  EXPECT_TRUE(s.log_probs.requires_grad() && s.entropy.requires_grad());
  EXPECT_FALSE(s.logit_means.requires_grad() || s.likeliest.requires_grad() ||
               s.square_sums.requires_grad());
}

}  // namespace
}  // namespace token_scores_op_test
}  // namespace tapestry

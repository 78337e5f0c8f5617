#include "autograd/ops/random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/philox.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/gradcheck.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "tests/autograd/ops/expect_close.h"

namespace tapestry {
namespace {

const RandomKey kKey{11, 3, 0};

class Threads {
 public:
  explicit Threads(int count) : previous_(num_threads()) { set_num_threads(count); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() { set_num_threads(previous_); }

 private:
  int previous_;
};

void expect_moments(const Tensor& x, double expected_mean, double expected_variance) {
  const auto n = static_cast<double>(x.numel());
  const Tensor wide = x.to(kFloat64);
  const double m = mean(wide).item();
  const double variance = mean(square(sub(wide, m))).item();
  EXPECT_NEAR(m, expected_mean, 5 * std::sqrt(expected_variance / n));
  EXPECT_NEAR(variance, expected_variance, 0.03 * expected_variance);
}

TEST(Random, Moments) {
  const Shape shape{200, 250};
  for (const DType dtype : {kFloat32, kFloat64}) {
    expect_moments(rand(shape, dtype, kKey), 0.5, 1.0 / 12);
    expect_moments(randn(shape, dtype, kKey), 0, 1);
    expect_moments(uniform(-3, 1, shape, dtype, kKey), -1, 16.0 / 12);
    expect_moments(normal(2, 0.5, shape, dtype, kKey), 2, 0.25);
  }
  expect_moments(randint(-5, 6, shape, kInt64, kKey), 0, 10);
  expect_moments(bernoulli(0.3, shape, kKey), 0.3, 0.21);
}

TEST(Random, Ranges) {
  for (const DType dtype : {kFloat16, kBFloat16, kFloat32, kFloat64}) {
    const std::vector<double> values = rand({50000}, dtype, kKey).to_vector<double>();
    EXPECT_GE(*std::min_element(values.begin(), values.end()), 0);
    EXPECT_LT(*std::max_element(values.begin(), values.end()), 1);
  }
  const std::vector<int64_t> dice = randint(1, 7, {5000}, kInt32, kKey).to_vector<int64_t>();
  for (int64_t face = 0; face <= 7; ++face) {
    const auto count = std::count(dice.begin(), dice.end(), face);
    EXPECT_NEAR(static_cast<double>(count), face >= 1 && face <= 6 ? 5000.0 / 6 : 0,
                face >= 1 && face <= 6 ? 150 : 0);
  }
  const int64_t low = std::numeric_limits<int64_t>::min();
  const int64_t high = std::numeric_limits<int64_t>::max();
  const Tensor all = randint(low, high, {1000}, kInt64, kKey);
  EXPECT_GT(sum(lt(all, -4e18)).item(), 10);
  EXPECT_GT(sum(gt(all, 4e18)).item(), 10);
  expect_close(uniform(2, 2, {3}, kFloat32, kKey), full({3}, 2), 0);
  expect_close(normal(2, 0, {3}, kFloat32, kKey), full({3}, 2), 0);
}

TEST(Random, ElementIUsesCounterOffsetPlusI) {
  const auto shifted = [](int64_t by) {
    return RandomKey{kKey.seed, kKey.stream, static_cast<uint64_t>(by)};
  };
  for (const int64_t by : {1, 2, 5}) {
    expect_close(rand({10}, kFloat64, shifted(by)),
                 slice(rand({16}, kFloat64, kKey), 0, by, by + 10), 0);
    expect_close(randn({10}, kFloat64, shifted(by)),
                 slice(randn({16}, kFloat64, kKey), 0, by, by + 10), 0);
    expect_close(bernoulli(0.5, {10}, shifted(by)),
                 slice(bernoulli(0.5, {16}, kKey), 0, by, by + 10), 0);
    expect_close(randint(0, 99, {10}, kInt64, shifted(by)),
                 slice(randint(0, 99, {16}, kInt64, kKey), 0, by, by + 10), 0);
  }
  expect_close(rand({2, 3}, kFloat32, kKey).reshape({6}), rand({6}, kFloat32, kKey), 0);
  const uint64_t word = kernels::random_word(kKey.seed, kKey.stream, 4);
  EXPECT_EQ(rand({5}, kFloat64, kKey).at({4}), static_cast<double>(word >> 11U) * 0x1p-53);
}

TEST(Random, DefaultGeneratorMovesOnAndIsRestoredExactly) {
  manual_seed(5);
  Generator& generator = RankContext::current().default_generator();
  const Tensor first = randn({100});
  const Generator::State state = generator.state();
  const Tensor second = randn({100});
  const Tensor order = randperm(50);
  EXPECT_GT(mean(abs(sub(first, second))).item(), 0.5);
  generator.set_state(state);
  expect_close(randn({100}), second, 0);
  expect_close(randperm(50), order, 0);
  manual_seed(5);
  expect_close(randn({100}), first, 0);
  Generator own(5);
  expect_close(randn({100}, kFloat32, own), first, 0);
  EXPECT_EQ(own.state().offset, 100U);
}

TEST(Random, KindsFromOneGeneratorAreUnrelated) {
  // In one stream, bit 2 m + 1 drawn after 2000 uniform numbers would be made of the upper half of
  // uniform number 1000 + m (see philox.h).
  Generator generator(8);
  const Tensor u = sub(rand({2000}, kFloat64, generator), 0.5);
  const Tensor bits = sub(bernoulli(0.5, {2000}, generator).to(kFloat64), 0.5);
  const Tensor products = mul(slice(u, 0, 1000, 2000), slice(bits, 0, 1, 2000, 2));
  EXPECT_LT(std::abs(mean(products).item()) / std::sqrt(1.0 / 12 / 4), 0.15);
}

TEST(Random, SameNumbersForAnyNumberOfThreads) {
  const Tensor x = rand({300, 400}, kFloat32, kKey);
  const auto draw = [&](int threads) {
    const Threads guard(threads);
    return TensorList{rand({90000}, kFloat32, kKey),
                      randn({90001}, kFloat32, kKey),
                      randint(0, 1 << 30, {90000}, kInt64, kKey),
                      bernoulli(0.3, {90003}, kKey),
                      dropout(x, 0.3, true, kKey),
                      multinomial(x, 20, false, kKey),
                      multinomial(x, 20, true, kKey)};
  };
  const TensorList one = draw(1);
  const TensorList two = draw(2);
  for (size_t i = 0; i < one.size(); ++i) {
    expect_close(two[i], one[i], 0);
  }
}

TEST(Random, RandpermIsAPermutation) {
  const std::vector<int64_t> order = randperm(1000, kKey).to_vector<int64_t>();
  std::vector<int64_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  std::vector<int64_t> expected(1000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(sorted, expected);
  EXPECT_NE(order, expected);
  EXPECT_EQ(randperm(0).numel(), 0);
  // Every entry comes first about equally often.
  std::vector<int> firsts(4);
  for (uint64_t stream = 0; stream < 4000; ++stream) {
    const int64_t first = randperm(4, RandomKey{1, stream, 0}).to_vector<int64_t>()[0];
    ++firsts[static_cast<size_t>(first)];
  }
  for (const int count : firsts) {
    EXPECT_NEAR(count, 1000, 150);
  }
}

TEST(Random, BernoulliOfProbabilities) {
  const Tensor p = tensor<double>({0, 1, 0.25}, {3}).unsqueeze(1).expand({3, 20000});
  const Tensor shares = mean(bernoulli(p, kKey).to(kFloat64), {1});
  EXPECT_EQ(shares.at({0}), 0);
  EXPECT_EQ(shares.at({1}), 1);
  EXPECT_NEAR(shares.at({2}), 0.25, 0.02);
  expect_close(bernoulli(full({7, 9}, 0.4, kFloat64), kKey), bernoulli(0.4, {7, 9}, kKey), 0);
}

TEST(Random, MultinomialFollowsTheWeights) {
  const Tensor weights = tensor<double>({1, 0, 3, 4, 2, 0}, {6});
  std::vector<int> counts(6);
  for (const int64_t v : multinomial(weights, 20000, true, kKey).to_vector<int64_t>()) {
    ++counts[static_cast<size_t>(v)];
  }
  const double shares[] = {0.1, 0, 0.3, 0.4, 0.2, 0};
  for (size_t v = 0; v < 6; ++v) {
    EXPECT_NEAR(counts[v] / 20000.0, shares[v], shares[v] > 0 ? 0.02 : 0);
  }
  // Without replacement the first draw has the same distribution, and no entry comes twice.
  std::vector<int> firsts(6);
  std::vector<int> seconds_after_three(6);
  for (uint64_t stream = 0; stream < 20000; ++stream) {
    const std::vector<int64_t> drawn =
        multinomial(weights, 4, false, RandomKey{2, stream, 0}).to_vector<int64_t>();
    ++firsts[static_cast<size_t>(drawn[0])];
    if (drawn[0] == 3) {
      ++seconds_after_three[static_cast<size_t>(drawn[1])];
    }
    std::vector<int64_t> sorted = drawn;
    std::sort(sorted.begin(), sorted.end());
    ASSERT_EQ(sorted, (std::vector<int64_t>{0, 2, 3, 4}));
  }
  for (size_t v = 0; v < 6; ++v) {
    EXPECT_NEAR(firsts[v] / 20000.0, shares[v], shares[v] > 0 ? 0.02 : 0);
  }
  EXPECT_NEAR(seconds_after_three[2] / static_cast<double>(firsts[3]), 0.5, 0.03);
}

TEST(Random, MultinomialRows) {
  const Tensor weights = tensor<float>({0, 0, 5, 1, 0, 0}, {2, 3});
  expect_close(multinomial(weights, 3, true, kKey), tensor<int64_t>({2, 2, 2, 0, 0, 0}, {2, 3}), 0);
  EXPECT_EQ(multinomial(weights, 0, true, kKey).shape(), (Shape{2, 0}));
}

TEST(Random, Errors) {
  EXPECT_THROW(rand({-1}), ValueError);
  EXPECT_THROW(rand({2}, kInt64), TypeError);
  EXPECT_THROW(randn({2}, kBool), TypeError);
  EXPECT_THROW(uniform(1, 0, {2}), ValueError);
  EXPECT_THROW(uniform(0, INFINITY, {2}), ValueError);
  EXPECT_THROW(normal(0, -1, {2}), ValueError);
  EXPECT_THROW(randint(3, 3, {2}), ValueError);
  EXPECT_THROW(randint(0, int64_t{1} << 40, {2}, kInt32), ValueError);
  EXPECT_THROW(randint(0, 3, {2}, kFloat32), TypeError);
  EXPECT_THROW(randperm(-1), ValueError);
  EXPECT_THROW(bernoulli(1.5, {2}), ValueError);
  EXPECT_THROW(bernoulli(NAN, {2}), ValueError);
  EXPECT_THROW(bernoulli(zeros({2}, kInt64)), TypeError);
  EXPECT_THROW(multinomial(ones({2, 2, 2}), 1), ValueError);
  EXPECT_THROW(multinomial(ones({2}, kInt64), 1), TypeError);
  EXPECT_THROW(multinomial(ones({2}), -1), ValueError);
  EXPECT_THROW(multinomial(zeros({2}), 1, true), ValueError);
  EXPECT_THROW(multinomial(tensor({1.0F, -1.0F}), 1), ValueError);
  EXPECT_THROW(multinomial(tensor({1.0F, NAN}), 1), ValueError);
  EXPECT_THROW(multinomial(tensor({1.0F, 0.0F}), 2), ValueError);
  try {
    bernoulli(tensor<double>({0.5, 0.5, 2.0, 0.5}, {2, 2}));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const ValueError& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("2 at position [1, 0]"));
  }
}

TEST(Dropout, KeepsAShareAndTheMean) {
  const Tensor x = ones({400, 250});
  for (const double p : {0.1, 0.5, 0.9}) {
    const Tensor y = dropout(x, p, true, kKey);
    const double kept = mean(ne(y, 0.0).to(kFloat64)).item();
    EXPECT_NEAR(kept, 1 - p, 0.01);
    expect_close(y, mul(ne(y, 0.0).to(kFloat32), 1 / (1 - p)), 1e-6);
  }
  expect_close(dropout(x, 1, true, kKey), zeros({400, 250}), 0);
}

TEST(Dropout, OffOrWithoutProbabilityIsTheInput) {
  manual_seed(1);
  const Tensor x = ones({3});
  EXPECT_TRUE(dropout(x, 0.5, false).is_same(x));
  EXPECT_TRUE(dropout(x, 0).is_same(x));
  EXPECT_EQ(RankContext::current().default_generator().state().offset, 0U);
  dropout(x, 0.5);
  EXPECT_EQ(RankContext::current().default_generator().state().offset, 3U);
}

TEST(Dropout, BackwardMakesTheSameMaskAndKeepsNothing) {
  const Tensor x = ones({100, 100}).set_requires_grad();
  const int64_t before = memory_stats().current_bytes;
  Tensor y = dropout(x, 0.4, true, kKey);
  const Tensor values = y.detach().clone();
  const Tensor dx = grad(y, {x}, ones({100, 100}), {.retain_graph = true})[0];
  expect_close(dx, values, 0);
  EXPECT_EQ(memory_stats().current_bytes - before,
            3 * CachingAllocator::rounded_size(100 * 100 * 4));
}

TEST(Dropout, MaskIsThatOfBernoulli) {
  const Tensor keep = bernoulli(0.7, {50, 30}, kKey);
  const Tensor x = randn({50, 30}, kFloat64, RandomKey{1, 1, 0});
  expect_close(dropout(x, 0.3, true, kKey), dropout_mask(x, keep, 0.3), 1e-15);
  expect_close(dropout(x.t(), 0.3, true, kKey), dropout(x.t().contiguous(), 0.3, true, kKey), 0);
}

TEST(Dropout, MaskDependsOnThePlaceAlone) {
  const Shape whole_shape{4, 10, 6000};
  const Tensor x = ones(whole_shape);
  for (const int64_t sample_axis : {-1, 0, 1}) {
    const Tensor whole = dropout(x, 0.5, kKey, {whole_shape, {0, 0, 0}, sample_axis});
    const auto cut = [](const Tensor& t) {
      return slice(slice(slice(t, 0, 1, 3), 1, 4, 9), 2, 1000, 5500);
    };
    expect_close(dropout(cut(x), 0.5, kKey, {whole_shape, {1, 4, 1000}, sample_axis}), cut(whole),
                 0);
  }
  // [S, B, H] holds the numbers of [B, S, H].
  const Tensor batch_first = dropout(x, 0.5, kKey, {whole_shape, {0, 0, 0}, 0});
  const Tensor length_first =
      dropout(x.permute({1, 0, 2}), 0.5, kKey, {{10, 4, 6000}, {0, 0, 0}, 1});
  expect_close(length_first, batch_first.permute({1, 0, 2}), 0);
  // A sample has the same numbers in whichever micro-batch it comes.
  expect_close(dropout(slice(x, 0, 0, 1), 0.5, kKey, {{1, 10, 6000}, {2, 0, 0}, 0}),
               slice(batch_first, 0, 2, 3), 0);
}

TEST(Dropout, DroppedEntriesMayBeAnything) {
  const Tensor x = full({100}, std::numeric_limits<double>::infinity(), kFloat64);
  EXPECT_EQ(sum(isnan(dropout(x, 0.5, true, kKey))).item(), 0);
}

TEST(Dropout, GivenMask) {
  const Tensor x = tensor<double>({1, 2, 3, 4}, {2, 2}).set_requires_grad();
  const Tensor keep = bernoulli(1.0, {2, 1}, kKey);
  keep.data<bool>()[1] = false;
  const auto fn = [&](const TensorList& in) { return TensorList{dropout_mask(in[0], keep, 0.2)}; };
  expect_close(fn({x})[0], tensor<double>({1.25, 2.5, 0, 0}, {2, 2}), 1e-15);
  EXPECT_TRUE(gradcheck(fn, {x}));
  EXPECT_TRUE(gradgradcheck(fn, {x}));
  EXPECT_THROW(dropout_mask(x, keep, 1), ValueError);
  EXPECT_THROW(dropout_mask(x, keep.to(kFloat32), 0.5), TypeError);
  EXPECT_THROW(dropout_mask(x, bernoulli(1.0, {3}), 0.5), ValueError);
  EXPECT_THROW(dropout_mask(ones({2}, kInt64), keep, 0.5), TypeError);
}

}  // namespace
}  // namespace tapestry

// The noise on what a router reads depends on seed, step, layer, sample and place alone.
#include <gtest/gtest.h>

#include "autograd/ops/ops.h"
#include "autograd/tape/gradcheck.h"
#include "autograd/tensor/error.h"
#include "parallel_core/random.h"
#include "tests/parallel_core/transformer/moe/router_testing.h"

namespace tapestry {
namespace {

constexpr int64_t kSeq = 5;
constexpr int64_t kWidth = 6;

void use_samples(std::vector<int64_t> samples, int64_t step = 3) {
  random_context() = {.seed = 7, .step = step, .sample_ids = std::move(samples)};
}

// The noise of tokens with the given numbers, a row for each.
std::vector<float> noise_of(const std::vector<int64_t>& numbers, int64_t layer = 1) {
  const Tensor x = ones({std::ssize(numbers), kWidth});
  return input_jitter(x, 0.25, layer, numbers, kSeq).to_vector<float>();
}

TEST(InputJitter, IsUniformAroundOne) {
  use_samples({0});
  const Tensor x = ones({200, 100});
  const GroupTokens tokens = testing::all_tokens(1, 200);
  const Tensor noise = input_jitter(x, 0.25, 0, tokens.numbers, 200);
  EXPECT_GE(min(noise).item(), 0.75);
  EXPECT_LE(max(noise).item(), 1.25);
  EXPECT_NEAR(mean(noise).item(), 1, 0.005);
  EXPECT_NEAR(std(noise).item(), 0.5 / std::sqrt(12.0), 0.002);
}

TEST(InputJitter, ATokensNoiseIsItsOwn) {
  use_samples({4, 9});
  const std::vector<float> whole = noise_of(testing::all_tokens(2, kSeq).numbers);
  const std::vector<int64_t> some = {7, 3, 4, 5, 0, 9};  // across the end of a row, too
  const std::vector<float> found = noise_of(some);
  for (size_t t = 0; t < some.size(); ++t) {
    for (size_t h = 0; h < kWidth; ++h) {
      EXPECT_EQ(found[t * kWidth + h], whole[static_cast<size_t>(some[t]) * kWidth + h]);
    }
  }
  use_samples({9});  // the same sample in another micro-batch
  const std::vector<float> alone = noise_of({0, 1, 2, 3, 4});
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(), whole.begin() + kSeq * kWidth));
}

TEST(InputJitter, SampleStepAndLayerCount) {
  use_samples({4, 9});
  const std::vector<float> noise = noise_of({0, 1});
  EXPECT_EQ(noise_of({0, 1}), noise);
  EXPECT_NE(noise_of({5, 6}), noise);
  EXPECT_NE(noise_of({0, 1}, 2), noise);
  use_samples({4, 9}, 4);
  EXPECT_NE(noise_of({0, 1}), noise);
}

TEST(InputJitter, DerivativesAndErrors) {
  use_samples({4, 9});
  const std::vector<int64_t> numbers = {3, 4, 5};
  const auto function = [&](const TensorList& in) -> TensorList {
    return {input_jitter(in[0], 0.25, 1, numbers, kSeq)};
  };
  const Tensor x = normal(0, 1, {3, 2}, kFloat64, RandomKey{1, 2, 0}).set_requires_grad();
  const GradcheckResult once = gradcheck(function, {x});
  EXPECT_TRUE(once) << once.message;
  const GradcheckResult twice = gradgradcheck(function, {x});
  EXPECT_TRUE(twice) << twice.message;

  EXPECT_TRUE(input_jitter(x, 0, 1, numbers, kSeq).is_same(x));
  EXPECT_THROW(input_jitter(x, 1, 1, numbers, kSeq), ValueError);
  EXPECT_THROW(input_jitter(x, -0.1, 1, numbers, kSeq), ValueError);
  EXPECT_THROW(input_jitter(x, 0.1, 1, std::vector<int64_t>{3, 4}, kSeq), ValueError);
  EXPECT_THROW(input_jitter(x, 0.1, 1, std::vector<int64_t>{3, 4, 10}, kSeq), ValueError);
  EXPECT_THROW(input_jitter(x, 0.1, 1, std::vector<int64_t>{-1, 4, 5}, kSeq), ValueError);
}

}  // namespace
}  // namespace tapestry

// Random numbers in place of a router's logits depend on seed, step, layer, sample and place alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/ops/ops.h"
#include "autograd/tape/checkpoint.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/error.h"
#include "parallel_core/random.h"
#include "tests/parallel_core/transformer/moe/router_testing.h"

namespace tapestry {
namespace {

constexpr int64_t kRandomLength = 5;
constexpr int64_t kRandomExperts = 4;

void set_context(std::vector<int64_t> samples, int64_t step = 3) {
  random_context() = {.seed = 7, .step = step, .sample_ids = std::move(samples)};
}

std::vector<float> logits_of(const std::vector<int64_t>& numbers, int64_t layer = 1) {
  const Tensor real = full({std::ssize(numbers), kRandomExperts}, testing::kNaN);
  return random_logits(real, layer, numbers, kRandomLength).to_vector<float>();
}

TEST(RandomLogits, AreNormalAndForgetTheRealOnes) {
  set_context({0});
  const GroupTokens tokens = testing::all_tokens(1, 2000);
  const Tensor found = random_logits(full({2000, 8}, testing::kNaN), 0, tokens.numbers, 2000);
  EXPECT_NEAR(mean(found).item(), 0, 0.03);
  EXPECT_NEAR(std(found).item(), 1, 0.03);
}

TEST(RandomLogits, ATokensNumbersAreItsOwn) {
  set_context({4, 9});
  const std::vector<float> whole = logits_of(testing::all_tokens(2, kRandomLength).numbers);
  const std::vector<int64_t> some = {7, 3, 4, 5, 0, 9};  // across the end of a row, too
  const std::vector<float> found = logits_of(some);
  for (size_t t = 0; t < some.size(); ++t) {
    for (size_t e = 0; e < kRandomExperts; ++e) {
      EXPECT_EQ(found[t * kRandomExperts + e],
                whole[static_cast<size_t>(some[t]) * kRandomExperts + e]);
    }
  }
  EXPECT_NE(logits_of({5, 6}), logits_of({0, 1}));
  EXPECT_NE(logits_of({0, 1}, 2), logits_of({0, 1}));
  const std::vector<float> before = logits_of({0, 1});
  set_context({4, 9}, 4);
  EXPECT_NE(logits_of({0, 1}), before);
  EXPECT_THAT(logits_of({}), ::testing::IsEmpty());
}

TEST(RandomLogits, TheGradientPassesAsItIs) {
  set_context({4, 9});
  const Tensor real = randn({3, kRandomExperts}).set_requires_grad();
  const Tensor probe = normal(0, 1, {3, kRandomExperts}, kFloat32, RandomKey{1, 2, 0});
  sum(random_logits(real, 1, std::vector<int64_t>{3, 4, 5}, kRandomLength) * probe).backward();
  EXPECT_EQ(real.grad().to_vector<float>(), probe.to_vector<float>());
}

TEST(RandomLogits, RefusesTokensThatAreNot) {
  set_context({4, 9});
  const Tensor real = zeros({3, kRandomExperts});
  EXPECT_THROW(random_logits(real, 1, std::vector<int64_t>{3, 4}, kRandomLength), ValueError);
  EXPECT_THROW(random_logits(real, 1, std::vector<int64_t>{3, 4, 10}, kRandomLength), ValueError);
  EXPECT_THROW(random_logits(real, 1, std::vector<int64_t>{-1, 4, 5}, kRandomLength), ValueError);
}

}  // namespace
}  // namespace tapestry

#include "parallel_core/inference/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "autograd/kernels/philox.h"
#include "autograd/tensor/error.h"

namespace tapestry {
namespace {

using Logits = std::vector<float>;

std::set<int64_t> chosen(const Logits& logits, const GenerationOptions& options) {
  std::set<int64_t> out;
  for (int i = 0; i < 2000; ++i) {
    out.insert(sample_token(logits, options, (i + 0.5) / 2000));
  }
  return out;
}

TEST(Sampling, MinPGoesByTheLikeliest) {
  const Logits logits = {std::log(0.5F), std::log(0.3F), std::log(0.15F), std::log(0.05F)};
  using Ids = std::set<int64_t>;
  EXPECT_EQ(chosen(logits, {.min_p = 0.09}), Ids({0, 1, 2, 3}));
  EXPECT_EQ(chosen(logits, {.min_p = 0.11}), Ids({0, 1, 2}));
  EXPECT_EQ(chosen(logits, {.min_p = 0.31}), Ids({0, 1}));
  EXPECT_EQ(chosen(logits, {.min_p = 1}), Ids({0}));
  // After the temperature, which makes the shares 0.36 and 0.09.
  EXPECT_EQ(chosen(logits, {.temperature = 0.5, .min_p = 0.35}), Ids({0, 1}));
  EXPECT_EQ(chosen(logits, {.temperature = 0.5, .min_p = 0.37}), Ids({0}));
  EXPECT_EQ(chosen(logits, {.top_k = 2, .min_p = 0.1}), Ids({0, 1}));
  EXPECT_EQ(chosen(logits, {.top_p = 0.6, .min_p = 0.01}), Ids({0, 1}));
}

// Of a large vocabulary only a part is sorted; what is chosen is that of the whole order.
TEST(Sampling, LargeVocabulariesAreAsSorted) {
  constexpr size_t kSize = 5000;
  Logits logits(kSize);
  kernels::fill_normal(kFloat32, kSize, 3, 4, 0, 0, 1.5, logits.data());
  std::vector<size_t> order(kSize);
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  const auto plain = [&](size_t count, double top_p, double draw) {
    double total = 0;
    for (size_t i = 0; i < count; ++i) {
      total += std::exp(static_cast<double>(logits[order[i]]));
    }
    double kept = 0;
    size_t n = 0;
    while (n < count && (n == 0 || kept < top_p * total)) {
      kept += std::exp(static_cast<double>(logits[order[n++]]));
    }
    double left = draw * kept;
    for (size_t i = 0; i + 1 < n; ++i) {
      left -= std::exp(static_cast<double>(logits[order[i]]));
      if (left < 0) {
        return static_cast<int64_t>(order[i]);
      }
    }
    return static_cast<int64_t>(order[n - 1]);
  };
  for (int i = 0; i < 200; ++i) {
    const double draw = (i + 0.37) / 200;
    EXPECT_EQ(sample_token(logits, {}, draw), plain(kSize, 1, draw));
    EXPECT_EQ(sample_token(logits, {.top_k = 300}, draw), plain(300, 1, draw));
    EXPECT_EQ(sample_token(logits, {.top_k = 2000, .top_p = 0.8}, draw), plain(2000, 0.8, draw));
  }
}

// Source of the expected values: RepetitionPenaltyLogitsProcessor of the transformers library.
TEST(Sampling, RepetitionPenalty) {
  Logits logits = {2, -2, 3, -3, 0};
  const std::vector<int32_t> ids = {0, 1, 1, 0, 4, 99};
  penalize_repetition(logits, ids, 2);
  EXPECT_EQ(logits, Logits({1, -4, 3, -3, 0}));
  penalize_repetition(logits, ids, 0.5);
  EXPECT_EQ(logits, Logits({2, -2, 3, -3, 0}));
}

TEST(Sampling, LogProbabilities) {
  const Logits logits = {std::log(1.0F), std::log(2.0F), std::log(5.0F), std::log(2.0F)};
  const std::vector<TokenLogProb> found = log_probabilities(logits, 0, 3, 3);
  ASSERT_EQ(found.size(), 4U);
  const int32_t ids[] = {3, 2, 1, 3};
  const double probabilities[] = {0.2, 0.5, 0.2, 0.2};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(found[i].id, ids[i]);
    EXPECT_NEAR(found[i].log_prob, std::log(probabilities[i]), 1e-6);
  }
  // Padding of the vocabulary has no probability.
  EXPECT_NEAR(log_probabilities(logits, 2, 1, 0)[0].log_prob, std::log(2.0 / 3), 1e-6);
  EXPECT_EQ(log_probabilities(logits, 2, 1, 5).size(), 3U);
  EXPECT_THROW(log_probabilities(Logits{NAN}, 0, 0, 0), ValueError);
}

}  // namespace
}  // namespace tapestry

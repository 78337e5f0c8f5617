#include "parallel_core/data/blended_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "autograd/tensor/error.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::data {
namespace {

using ::testing::ElementsAre;

TEST(BlendIndices, KnownOrders) {
  const BlendIndices two = build_blend_indices(std::vector<double>{0.3, 0.7}, 10);
  EXPECT_THAT(two.dataset, ElementsAre(1, 0, 1, 1, 0, 1, 1, 0, 1, 1));
  EXPECT_THAT(two.sample, ElementsAre(0, 0, 1, 2, 1, 3, 4, 2, 5, 6));
  const BlendIndices three = build_blend_indices(std::vector<double>{0.5, 0.3, 0.2}, 12);
  EXPECT_THAT(three.dataset, ElementsAre(0, 1, 2, 0, 1, 0, 2, 0, 1, 0, 0, 1));
}

TEST(BlendIndices, ExhaustiveUsesEverySampleOnce) {
  const BlendIndices known = build_exhaustive_blend_indices(std::vector<int64_t>{2, 5});
  EXPECT_THAT(known.dataset, ElementsAre(1, 0, 1, 1, 0, 1, 1));
  const std::vector<int64_t> sizes = {3, 0, 11, 6};
  const BlendIndices indices = build_exhaustive_blend_indices(sizes);
  std::vector<int64_t> taken(sizes.size(), 0);
  for (size_t k = 0; k < indices.dataset.size(); ++k) {
    EXPECT_EQ(indices.sample[k], taken[static_cast<size_t>(indices.dataset[k])]++);
  }
  EXPECT_EQ(taken, sizes);
  EXPECT_ERROR(build_exhaustive_blend_indices(std::vector<int64_t>{0, 0}), ValueError,
               "no dataset");
}

TEST(BlendIndices, EachDatasetStaysWithinOneSampleOfItsShare) {
  const std::vector<double> weights = {5, 1, 3, 0.5, 2, 2, 7, 1, 4};
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> taken(weights.size(), 0);
  const BlendIndices indices = build_blend_indices(weights, 1000);
  for (const auto dataset : indices.dataset) {
    taken[static_cast<size_t>(dataset)] += 1;
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_NEAR(taken[i], 1000 * weights[i] / sum, 1.0) << i;
  }
}

TEST(BlendWeights, SumsInTheOrderOfNumPy) {
  // Lanes of 2^53 +- 1 tell the orders of addition apart: 9 terms go through eight accumulators.
  std::vector<double> nine = {0x1p53, 1, 1, 1, 1, 1, 1, 1, 1};
  // ((2^53 + 1) + 2) + 4 = 2^53 + 6, then + 1 = 2^53 + 6 or 8, halves rounding to even.
  const double expected = (((0x1p53 + 1) + 2) + 4) + 1;
  EXPECT_EQ(normalize_weights(nine)[0], 0x1p53 / expected);
  const std::vector<double> many(300, 0.1);
  // Blocks: 300 -> 144 + 156 -> 72 + 72, 72 + 84; each is summed on its own.
  const auto block = [](int n) {
    double lane[8];
    std::fill_n(lane, 8, 0.1);
    int i = 8;
    for (; i + 8 <= n; i += 8) {
      for (double& value : lane) {
        value += 0.1;
      }
    }
    double sum =
        ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
    for (; i < n; ++i) {
      sum += 0.1;
    }
    return sum;
  };
  EXPECT_EQ(normalize_weights(many)[0], 0.1 / ((block(72) + block(72)) + (block(72) + block(84))));
}

TEST(BlendWeights, RefusesWhatIsNotAWeight) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_ERROR(normalize_weights(std::vector<double>{1, -1}), ValueError, "weight -1");
  EXPECT_ERROR(normalize_weights(std::vector<double>{1, nan}), ValueError, "weight nan");
  EXPECT_ERROR(normalize_weights(std::vector<double>{0, 0}), ValueError, "add up to 0");
  EXPECT_ERROR(build_blend_indices(std::vector<double>{}, 1), ValueError, "0 datasets");
}

TEST(BlendSizes, CeilTwice) {
  EXPECT_THAT(blend_dataset_sizes(std::vector<double>{0.3, 0.7}, 1000), ElementsAre(302, 704));
  EXPECT_THAT(blend_dataset_sizes(std::vector<double>{1, 2}, 10, 0.0), ElementsAre(4, 7));
  EXPECT_ERROR(blend_dataset_sizes(std::vector<double>{1}, 1, -0.1), ValueError,
               "surplus ... -0.1");
}

TEST(ParseDataPath, TellsWeightsFromPrefixes) {
  const auto parse = [](std::vector<std::string> items) { return parse_data_path(items); };
  const auto pairs = parse({"0.3", "a", "7e-1", "b"});
  ASSERT_EQ(pairs.size(), 2U);
  EXPECT_EQ(pairs[0].weight, 0.3);
  EXPECT_EQ(pairs[1].weight, 0.7);
  EXPECT_EQ(pairs[1].prefix, "b");
  EXPECT_EQ(parse({"1", "a", "2"}).size(), 3U);  // odd: all are prefixes
  EXPECT_FALSE(parse({"1", "a", "2"})[0].weight.has_value());
  EXPECT_FALSE(parse({"a", "b"})[1].weight.has_value());
  EXPECT_ERROR(parse({"1", "a", "b", "c"}), ValueError, "mixes prefixes");
  EXPECT_ERROR(parse({}), ValueError, "is empty");
}

// Every token of a sample is 1000 id + k.
class FakeDataset final : public TokenDataset {
 public:
  FakeDataset(int64_t id, int64_t size, int64_t seq) : id_(id), size_(size), seq_(seq) {}
  int64_t size() const override { return size_; }
  int64_t seq_length() const override { return seq_; }
  int64_t tokens_per_epoch() const override { return size_ * seq_; }
  Sample get(int64_t k) const override {
    Sample sample;
    sample.tokens.assign(static_cast<size_t>(seq_), 1000 * id_ + k);
    return sample;
  }
  // Each sample is a document.
  RowOrigin origin(int64_t k) const override {
    return {.dataset = name(), .documents = {{k, 0, seq_}}};
  }
  std::map<std::string, int64_t> documents() const override { return {{name(), size_}}; }
  std::vector<int64_t> samples_with(const std::string& prefix, int64_t document) const override {
    return prefix == name() ? std::vector<int64_t>{document} : std::vector<int64_t>{};
  }

 private:
  std::string name() const { return "data" + std::to_string(id_); }

  int64_t id_;
  int64_t size_;
  int64_t seq_;
};

TEST(BlendedDataset, ForwardsToItsDatasets) {
  const auto a = std::make_shared<FakeDataset>(1, 3, 2);
  const auto b = std::make_shared<FakeDataset>(2, 7, 2);
  const BlendedDataset blend({a, b}, build_blend_indices(std::vector<double>{0.3, 0.7}, 10));
  EXPECT_EQ(blend.size(), 10);
  EXPECT_EQ(blend.tokens_per_epoch(), 20);
  EXPECT_THAT(blend.get(0).tokens, ElementsAre(2000, 2000));
  EXPECT_THAT(blend.get(7).tokens, ElementsAre(1002, 1002));
  EXPECT_ERROR(blend.get(10), IndexError, "sample 10 of 10");
}

TEST(BlendedDataset, RefusesTooFewSamplesAndOtherLengths) {
  const auto a = std::make_shared<FakeDataset>(1, 3, 2);
  const auto small = std::make_shared<FakeDataset>(2, 6, 2);
  const auto wide = std::make_shared<FakeDataset>(2, 7, 3);
  const BlendIndices indices = build_blend_indices(std::vector<double>{0.3, 0.7}, 10);
  EXPECT_ERROR(BlendedDataset({a, small}, indices), RuntimeError, "use a larger surplus");
  EXPECT_ERROR(BlendedDataset({a, wide}, indices), ValueError, "sequence lengths 2 and 3");
}

}  // namespace
}  // namespace tapestry::data

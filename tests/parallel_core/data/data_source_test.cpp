#include "parallel_core/data/data_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "autograd/tensor/error.h"
#include "tests/parallel_core/data/temp_dir.h"

namespace tapestry::data {
namespace {

using ::testing::ElementsAre;

class DataSourceTest : public ::testing::Test {
 protected:
  // `documents` documents of 3 to 9 tokens, each token first + its number.
  std::string store(const std::string& name, int32_t documents, int32_t first) {
    IndexedDatasetWriter writer(dir_.file(name), TokenType::kInt32);
    for (int32_t d = 0; d < documents; ++d) {
      std::vector<int32_t> tokens(static_cast<size_t>(3 + (d * 5) % 7));
      for (int32_t& token : tokens) {
        token = first++;
      }
      writer.add_tokens(tokens);
      writer.end_sequence();
      writer.end_document();
    }
    writer.finish();
    return dir_.file(name);
  }
  GPTDatasetsConfig config(std::vector<std::string> data_path, SampleCounts counts) {
    GPTDatasetsConfig result;
    result.data_path = std::move(data_path);
    result.split = "8,1,1";
    result.counts = counts;
    result.options.seq_length = 4;
    return result;
  }
  TempDir dir_;
};

TEST_F(DataSourceTest, EveryLayoutSeesTheSameSamplesInAStep) {
  const auto data = build_gpt_datasets(config({store("d", 100, 0)}, {.train = 240}));
  TokenDataSource source(data.train);
  constexpr int64_t kGlobal = 24;
  for (int64_t step = 0; step < 10; ++step) {
    for (const int64_t dp : {1, 2, 3, 4, 6}) {
      for (const int64_t micro : {1, 2, 4}) {
        const int64_t count = kGlobal / dp / micro;
        if (count * dp * micro != kGlobal) {
          continue;
        }
        std::map<int64_t, std::vector<int64_t>> rows;
        for (int64_t rank = 0; rank < dp; ++rank) {
          for (int64_t m = 0; m < count; ++m) {
            const Batch batch =
                source.micro_batch({step, step * kGlobal}, m, count, micro, rank, dp);
            ASSERT_EQ(batch.batch, micro);
            ASSERT_EQ(batch.tokens.size(), static_cast<size_t>(micro * 4));
            ASSERT_TRUE(batch.position_ids.empty() && batch.attention_mask.empty());
            for (int64_t row = 0; row < micro; ++row) {
              const auto at = batch.tokens.begin() + row * 4;
              rows[batch.sample_ids[static_cast<size_t>(row)]].assign(at, at + 4);
              // Chunk m is micro * dp consecutive samples, of which this rank has the rank-th part.
              EXPECT_EQ(batch.sample_ids[static_cast<size_t>(row)],
                        step * kGlobal + m * micro * dp + rank * micro + row);
            }
          }
        }
        ASSERT_EQ(rows.size(), static_cast<size_t>(kGlobal));
        for (const auto& [sample, tokens] : rows) {
          EXPECT_EQ(tokens, data.train->get(sample).tokens);
        }
        EXPECT_EQ(rows.begin()->first, step * kGlobal);
      }
    }
  }
}

TEST_F(DataSourceTest, SplitsAreDisjointAndEpochsAreCounted) {
  const auto data =
      build_gpt_datasets(config({store("d", 100, 0)}, {.train = 200, .valid = 5, .test = 5}));
  const auto [low_valid, high_valid] = [&] {
    int64_t low = INT64_MAX;
    int64_t high = 0;
    for (int64_t k = 0; k < data.valid->size(); ++k) {
      for (const int64_t token : data.valid->get(k).tokens) {
        low = std::min(low, token);
        high = std::max(high, token);
      }
    }
    return std::pair(low, high);
  }();
  for (int64_t k = 0; k < data.train->size(); ++k) {
    for (const int64_t token : data.train->get(k).tokens) {
      EXPECT_LT(token, low_valid);
    }
  }
  for (const int64_t token : data.test->get(0).tokens) {
    EXPECT_GT(token, high_valid);
  }
  const TokenDataSource source(data.train);
  const int64_t tokens = data.train->tokens_per_epoch();
  EXPECT_EQ(source.epoch(0), 0);
  for (int64_t step = 0; step < 40; ++step) {
    EXPECT_EQ(source.epoch(step * 8), step * 8 * 4 / tokens);
  }
}

TEST_F(DataSourceTest, ReportsTheEndAndBadLayouts) {
  const auto data = build_gpt_datasets(config({store("d", 20, 0)}, {.train = 10}));
  TokenDataSource source(data.train);
  const int64_t size = source.size_in_samples();
  EXPECT_GE(size, 10);
  EXPECT_NO_THROW(source.micro_batch({0, size - 1}, 0, 1, 1, 0, 1));
  EXPECT_ERROR(source.micro_batch({0, size}, 0, 1, 1, 0, 1), IndexError, "but the dataset has");
  EXPECT_ERROR(source.micro_batch({-1, 0}, 0, 1, 1, 0, 1), ValueError, "step -1");
  EXPECT_ERROR(source.micro_batch({}, 1, 1, 1, 0, 1), ValueError, "micro-batch 1 of 1");
  EXPECT_ERROR(source.micro_batch({}, 0, 1, 0, 0, 1), ValueError, "size 0");
  EXPECT_ERROR(source.micro_batch({}, 0, 1, 1, 2, 2), ValueError, "rank 2 of 2");
  EXPECT_ERROR(TokenDataSource(data.valid), ValueError, "no such dataset");
}

TEST_F(DataSourceTest, WeightedBlendsRepeatSmallDatasets) {
  const std::string a = store("a", 40, 0);
  const std::string b = store("b", 10, 10000);
  const auto data = build_gpt_datasets(config({"0.5", a, "0.5", b}, {.train = 101}));
  EXPECT_EQ(data.train->size(), 102);  // 51 of each
  int from_b = 0;
  for (int64_t k = 0; k < data.train->size(); ++k) {
    from_b += data.train->get(k).tokens[0] >= 10000 ? 1 : 0;
  }
  EXPECT_EQ(from_b, 51);
}

TEST_F(DataSourceTest, BarePrefixesAreUsedOnce) {
  const std::string a = store("a", 40, 0);
  const std::string b = store("b", 10, 10000);
  auto options = config({a, b}, {.train = 1000});
  options.split = "1";
  const auto once = build_gpt_datasets(options);
  options.data_path = {a};
  options.counts.train = 1;
  const int64_t size_a = build_gpt_datasets(options).train->size();
  options.data_path = {b};
  const int64_t size_b = build_gpt_datasets(options).train->size();
  EXPECT_EQ(once.train->size(), size_a + size_b);
}

TEST_F(DataSourceTest, EachPartMayHaveItsOwnData) {
  GPTDatasetsConfig own = config({}, {.train = 10, .valid = 2, .test = 2});
  own.train_data_path = {store("a", 10, 0)};
  own.valid_data_path = {store("b", 10, 10000)};
  const auto data = build_gpt_datasets(own);
  EXPECT_LT(data.train->get(0).tokens[0], 10000);
  EXPECT_GE(data.valid->get(0).tokens[0], 10000);
  EXPECT_EQ(data.test, nullptr);
  own.data_path = {"x"};
  EXPECT_ERROR(build_gpt_datasets(own), ValueError, "exclude each other");
}

TEST_F(DataSourceTest, RefusesWhatCannotBe) {
  EXPECT_ERROR(build_gpt_datasets(config({}, {.train = 1})), ValueError, "data_path: is empty");
  EXPECT_ERROR(build_gpt_datasets(config({dir_.file("none")}, {.train = 1})), IoError, "none.bin");
  EXPECT_EQ(build_gpt_datasets(config({store("d", 2, 0)}, {.train = 1})).valid, nullptr);
}

// Tokens of all samples of a part, each once.
std::set<int64_t> tokens_of(const TokenDataset& part) {
  std::set<int64_t> seen;
  for (int64_t k = 0; k < part.size(); ++k) {
    const Sample sample = part.get(k);
    seen.insert(sample.tokens.begin(), sample.tokens.end());
    seen.insert(sample.labels.begin(), sample.labels.end());
  }
  return seen;
}

// One document of 200 tokens: the parts are pieces of it that have nothing in common.
TEST_F(DataSourceTest, OneDocumentIsDividedByTokens) {
  IndexedDatasetWriter writer(dir_.file("one"), TokenType::kInt32);
  std::vector<int32_t> tokens(200);
  std::iota(tokens.begin(), tokens.end(), 0);
  writer.add_tokens(tokens);
  writer.end_sequence();
  writer.end_document();
  writer.finish();
  const auto data =
      build_gpt_datasets(config({dir_.file("one")}, {.train = 100, .valid = 30, .test = 10}));
  EXPECT_THAT(data.remarks, ElementsAre(::testing::HasSubstr(
                                "1 document is too few for split 8,1,1, so it cuts tokens: train "
                                "160, valid 20, test 20")));
  const std::set<int64_t> train = tokens_of(*data.train);
  const std::set<int64_t> valid = tokens_of(*data.valid);
  const std::set<int64_t> test = tokens_of(*data.test);
  EXPECT_EQ(std::pair(*train.begin(), *train.rbegin()), std::pair(int64_t{0}, int64_t{159}));
  EXPECT_EQ(std::pair(*valid.begin(), *valid.rbegin()), std::pair(int64_t{160}, int64_t{179}));
  EXPECT_EQ(std::pair(*test.begin(), *test.rbegin()), std::pair(int64_t{180}, int64_t{199}));
  // Whoever asks for what: the parts are the same.
  const auto alone = build_gpt_datasets(config({dir_.file("one")}, {.train = 100}));
  EXPECT_EQ(tokens_of(*alone.train), train);
  EXPECT_EQ(alone.valid, nullptr);
  auto all = config({dir_.file("one")}, {.train = 100, .valid = 1, .test = 1});
  all.split = "1";
  EXPECT_EQ(tokens_of(*build_gpt_datasets(all).train).size(), 200U);
  EXPECT_EQ(build_gpt_datasets(all).valid, nullptr);
}

TEST_F(DataSourceTest, ATestPartThatNobodyCanFillIsLeftOut) {
  auto usual = config({store("d", 69, 0)}, {.train = 20, .valid = 5, .test = 5});
  usual.split = "969,30,1";
  const auto data = build_gpt_datasets(usual);
  EXPECT_NE(data.valid, nullptr);
  EXPECT_EQ(data.test, nullptr);
  EXPECT_THAT(data.remarks, ElementsAre());  // by documents
}

// What the message advises is tried.
TEST_F(DataSourceTest, TheAdviceWorks) {
  IndexedDatasetWriter writer(dir_.file("two"), TokenType::kInt32);
  for (int i = 0; i < 2; ++i) {
    writer.add_tokens(std::vector<int32_t>(40, i));
    writer.end_sequence();
    writer.end_document();
  }
  writer.finish();
  auto asked = config({dir_.file("two")}, {.train = 4, .valid = 4});
  // By documents the validation part has none, by tokens training has less than a sample of 21.
  asked.split = "10,90";
  asked.options.seq_length = 20;
  EXPECT_ERROR(build_gpt_datasets(asked), ValueError, "use dataset_config.split 58,22");
  asked.split = "58,22";
  EXPECT_NO_THROW(build_gpt_datasets(asked));
  asked.options.seq_length = 64;
  asked.split = "80,1";
  EXPECT_ERROR(build_gpt_datasets(asked), ValueError,
               "model_config.seq_length 32, or no evaluation");
  asked.options.seq_length = 32;
  EXPECT_NO_THROW(build_gpt_datasets(asked));
  asked.options.seq_length = 64;
  asked.counts.valid = 0;  // eval_interval: null
  EXPECT_EQ(build_gpt_datasets(asked).train->seq_length(), 64);
}

TEST(SampleCounts, FollowTheIterations) {
  const SampleCounts counts = sample_counts(1000, 300, 10, 8);
  EXPECT_EQ(counts.train, 8000);
  EXPECT_EQ(counts.valid, (3 + 1) * 10 * 8);
  EXPECT_EQ(counts.test, 80);
  EXPECT_EQ(sample_counts(10, 0, 5, 1).valid, 0);
  EXPECT_ERROR(sample_counts(-1, 0, 0, 1), ValueError, "train_iters -1");
}

}  // namespace
}  // namespace tapestry::data

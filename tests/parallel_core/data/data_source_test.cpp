#include "parallel_core/data/data_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "autograd/tensor/error.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

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

// Tokens of the samples [0, count).
std::vector<std::vector<int64_t>> first_samples(const TokenDataset& part, int64_t count) {
  std::vector<std::vector<int64_t>> samples;
  for (int64_t k = 0; k < count; ++k) {
    samples.push_back(part.get(k).tokens);
  }
  return samples;
}

// Lists of numbers: the datasets of a longer one begin with those of the shorter one, where a run
// that had asked for the last number at once has another order.
TEST_F(DataSourceTest, APlanThatGrowsKeepsItsBeginning) {
  const std::string a = store("a", 40, 0);
  const std::string b = store("b", 15, 10000);
  struct Case {
    const char* what;
    std::vector<std::string> data_path;
    std::string split;
    std::vector<int64_t> plan;
  };
  // Dataset a alone has 59 samples of 4 tokens an epoch with all of its tokens.
  const std::vector<Case> cases = {
      {"more of the same epoch", {a}, "1", {10, 30, 59}},
      {"further epochs", {a}, "1", {50, 70, 300}},
      {"a last epoch shuffled on its own", {a}, "1", {59 + 10, 200}},
      {"parts", {a}, "8,1,1", {20, 90, 91, 150}},
      {"a blend", {"0.7", a, "0.3", b}, "1", {40, 41, 300, 700}},
      {"a blend of parts", {"0.2", a, "0.8", b}, "8,1,1", {33, 260}},
      {"a blend of one", {"1", a}, "1", {40, 400}},
      {"bare prefixes", {a, b}, "1", {20, 50}},
  };
  for (const Case& c : cases) {
    auto options = config(c.data_path, {});
    options.split = c.split;
    std::shared_ptr<const TokenDataset> before;
    for (const int64_t count : c.plan) {
      options.counts.train = count;
      const auto now = build_gpt_datasets(options).train;
      ASSERT_GE(now->size(), count) << c.what;
      if (before != nullptr) {
        ASSERT_GE(now->size(), before->size()) << c.what;
        EXPECT_EQ(first_samples(*now, before->size()), first_samples(*before, before->size()))
            << c.what << ", " << count;
        EXPECT_EQ(now->tokens_per_epoch(), before->tokens_per_epoch()) << c.what;
      }
      options.earlier = extend_plan(options.earlier, options.counts);
      EXPECT_EQ(options.earlier.train.back(), count);
      before = now;
      // A shorter run later on changes nothing.
      options.counts.train = 5;
      EXPECT_EQ(first_samples(*build_gpt_datasets(options).train, now->size()),
                first_samples(*now, now->size()))
          << c.what;
    }
  }
}

TEST_F(DataSourceTest, AllAtOnceIsAnotherOrder) {
  auto options = config({store("a", 40, 0)}, {.train = 50});
  const auto first = build_gpt_datasets(options).train;
  options.counts.train = 300;
  const auto all = build_gpt_datasets(options).train;
  EXPECT_NE(first_samples(*all, 50), first_samples(*first, 50));
  options.earlier.train = {50};
  EXPECT_EQ(first_samples(*build_gpt_datasets(options).train, 50), first_samples(*first, 50));
}

// What follows the samples of a plan is of other seeds: not the same order once more.
TEST_F(DataSourceTest, FurtherBuildsAreShuffledAnew) {
  auto options = config({store("a", 40, 0)}, {.train = 177});
  options.split = "1";
  options.earlier.train = {59, 118};
  const auto train = build_gpt_datasets(options).train;
  const auto all = first_samples(*train, 177);
  using Samples = std::vector<std::vector<int64_t>>;
  const Samples first(all.begin(), all.begin() + 59);
  const Samples second(all.begin() + 59, all.begin() + 118);
  const Samples third(all.begin() + 118, all.end());
  EXPECT_NE(first, second);
  EXPECT_NE(second, third);
  // Each holds the text once.
  for (const Samples& epoch : {first, second, third}) {
    std::set<int64_t> seen;
    for (const auto& tokens : epoch) {
      seen.insert(tokens.begin(), tokens.end());
    }
    EXPECT_GE(seen.size(), 59U * 4U - 4U);
  }
}

// Epoch after epoch as in the data: any number is the beginning of a larger one.
TEST_F(DataSourceTest, WithoutShufflingAPlanIsItsLargestNumber) {
  auto options = config({store("a", 40, 0)}, {.train = 300});
  options.options.shuffle = false;
  const auto all = build_gpt_datasets(options).train;
  options.earlier.train = {10, 70};
  const auto planned = build_gpt_datasets(options).train;
  ASSERT_EQ(planned->size(), all->size());
  EXPECT_EQ(first_samples(*planned, all->size()), first_samples(*all, all->size()));
}

// Passes over the text are counted by tokens, wherever a further build begins.
TEST_F(DataSourceTest, EpochsAreCountedAcrossBuilds) {
  auto options = config({store("a", 40, 0)}, {.train = 300});
  options.split = "1";
  options.earlier.train = {20, 100};
  const auto train = build_gpt_datasets(options).train;
  const TokenDataSource source(train);
  const int64_t tokens = train->tokens_per_epoch();
  for (int64_t sample = 0; sample < 300; ++sample) {
    EXPECT_EQ(source.epoch(sample), sample * 4 / tokens);
  }
  EXPECT_EQ(source.epoch(299), 4);
}

TEST_F(DataSourceTest, ValidationAndTestKeepTheirOrderToo) {
  auto options = config({store("a", 40, 0)}, {.train = 20, .valid = 12, .test = 4});
  const auto before = build_gpt_datasets(options);
  options.earlier = extend_plan({}, options.counts);
  options.counts = {.train = 20, .valid = 60, .test = 30};
  const auto now = build_gpt_datasets(options);
  EXPECT_EQ(first_samples(*now.valid, before.valid->size()),
            first_samples(*before.valid, before.valid->size()));
  EXPECT_EQ(first_samples(*now.test, before.test->size()),
            first_samples(*before.test, before.test->size()));
  EXPECT_GE(now.valid->size(), 60);
  options.counts.valid = 0;  // nothing is validated any more
  EXPECT_EQ(build_gpt_datasets(options).valid, nullptr);
}

// The batch grows after 5 steps: the next step begins where those ended.
TEST_F(DataSourceTest, AnotherGlobalBatchGoesOnAtTheNextSample) {
  const auto data = build_gpt_datasets(config({store("d", 100, 0)}, {.train = 240}));
  TokenDataSource source(data.train);
  std::vector<int64_t> drawn;
  BatchPosition position;
  for (const auto& [steps, micro, num, dp] :
       std::vector<std::array<int64_t, 4>>{{5, 2, 2, 1}, {3, 1, 3, 2}, {2, 4, 1, 4}}) {
    for (int64_t step = 0; step < steps; ++step) {
      for (int64_t m = 0; m < num; ++m) {
        for (int64_t rank = 0; rank < dp; ++rank) {
          const Batch batch = source.micro_batch(position, m, num, micro, rank, dp);
          drawn.insert(drawn.end(), batch.sample_ids.begin(), batch.sample_ids.end());
        }
      }
      position = {position.step + 1, position.first_sample + micro * num * dp};
    }
  }
  std::vector<int64_t> expected(20 + 18 + 32);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(drawn, expected);
}

TEST_F(DataSourceTest, PlansGrowWhereMoreIsAskedFor) {
  SamplePlan plan = extend_plan({}, {.train = 10, .valid = 0, .test = 3});
  EXPECT_EQ(plan, (SamplePlan{{10}, {}, {3}}));
  plan = extend_plan(plan, {.train = 10, .valid = 7, .test = 2});
  EXPECT_EQ(plan, (SamplePlan{{10}, {7}, {3}}));
  plan = extend_plan(plan, {.train = 11});
  EXPECT_EQ(plan, (SamplePlan{{10, 11}, {7}, {3}}));
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

// Where rows come from: in every kind of data, the tokens of the documents that a row names are the
// row's own.
#include "parallel_core/data/row_origin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "autograd/tensor/error.h"
#include "parallel_core/data/data_source.h"
#include "parallel_core/data/indexed_dataset.h"
#include "parallel_core/data/step_dataset.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::data {
namespace row_origin_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class RowOriginTest : public ::testing::Test {
 protected:
  // `documents` documents of up to three sequences of 0 to 10 tokens, which count from `first`.
  std::string store(const std::string& name, int documents, int32_t first) {
    IndexedDatasetWriter writer(dir_.file(name), TokenType::kInt32);
    for (int d = 0; d < documents; ++d) {
      for (int s = 0; s < (d * 7 + 1) % 4; ++s) {
        std::vector<int32_t> tokens(static_cast<size_t>((d * 5 + s * 3) % 11));
        for (int32_t& token : tokens) {
          token = first++;
        }
        writer.add_tokens(tokens);
        writer.end_sequence();
      }
      writer.end_document();
    }
    writer.finish();
    return dir_.file(name);
  }
  // The tokens that the parts name.
  std::vector<int64_t> tokens_of(const RowOrigin& origin) {
    auto& dataset = opened_[origin.dataset];
    if (!dataset) {
      dataset = std::make_shared<IndexedDataset>(origin.dataset);
    }
    std::vector<int64_t> tokens;
    for (const DocumentPart& part : origin.documents) {
      EXPECT_GE(part.count, 1);
      std::vector<int64_t> document;
      const auto boundaries = dataset->document_boundaries();
      const auto d = static_cast<size_t>(part.document);
      for (int64_t s = boundaries[d]; s < boundaries[d + 1]; ++s) {
        const auto more = dataset->sequence(s);
        document.insert(document.end(), more.begin(), more.end());
      }
      EXPECT_LE(part.first + part.count, static_cast<int64_t>(document.size()));
      const auto begin = document.begin() + part.first;
      tokens.insert(tokens.end(), begin, begin + part.count);
    }
    return tokens;
  }
  // Of all samples; and that each document is found in the samples that name it, and in no other.
  void expect_own_tokens(const TokenDataset& dataset) {
    std::map<std::pair<std::string, int64_t>, std::vector<int64_t>> samples;
    for (int64_t k = 0; k < dataset.size(); ++k) {
      const Sample sample = dataset.get(k);
      std::vector<int64_t> expected = sample.tokens;
      expected.push_back(sample.labels.back());
      const RowOrigin origin = dataset.origin(k);
      ASSERT_EQ(tokens_of(origin), expected) << "sample " << k;
      std::set<int64_t> named;
      for (const DocumentPart& part : origin.documents) {
        if (named.insert(part.document).second) {
          samples[{origin.dataset, part.document}].push_back(k);
        }
      }
    }
    for (const auto& [prefix, documents] : dataset.documents()) {
      for (int64_t d = 0; d < documents; ++d) {
        EXPECT_EQ(dataset.samples_with(prefix, d), (samples[{prefix, d}])) << prefix << ":" << d;
      }
      EXPECT_ERROR(dataset.samples_with(prefix, documents), IndexError,
                   concat("document ", documents, " of"));
      EXPECT_ERROR(dataset.samples_with(prefix, -1), IndexError, "document -1 of");
    }
    EXPECT_THAT(dataset.samples_with("elsewhere", 0), IsEmpty());
    EXPECT_ERROR(dataset.origin(dataset.size()), IndexError, concat("sample ", dataset.size()));
    EXPECT_ERROR(dataset.origin(-1), IndexError, "sample -1");
  }
  static GPTDatasetsConfig config(std::vector<std::string> data_path, std::string split = "8,1,1") {
    GPTDatasetsConfig result;
    result.data_path = std::move(data_path);
    result.split = std::move(split);
    result.counts = {.train = 150, .valid = 3};
    result.options.seq_length = 6;
    return result;
  }
  TempDir dir_;
  std::map<std::string, std::shared_ptr<IndexedDataset>> opened_;
};

TEST_F(RowOriginTest, EveryKindOfDataNamesItsOwnTokens) {
  const std::string a = store("a", 60, 1000);
  const std::string b = store("b", 25, 5000);
  std::map<std::string, GPTDatasetsConfig> cases = {
      {"epochs", config({a})},
      {"a blend", config({"0.7", a, "0.3", b})},
      {"a data set twice", config({"1", b, "1", b})},
      {"bare prefixes", config({a, b})},
      {"cut tokens", config({store("few", 6, 0)}, "95,5,0")},
  };
  cases["in the order of the data"] = config({a});
  cases["in the order of the data"].options.shuffle = false;
  // Sizes that grew twice.
  cases["went on"] = config({a});
  cases["went on"].earlier.train = {20, 60};
  cases["a blend went on"] = config({"0.5", a, "0.5", b});
  cases["a blend went on"].earlier.train = {30, 31, 100};
  for (const auto& [what, options] : cases) {
    SCOPED_TRACE(what);
    const GPTDatasets data = build_gpt_datasets(options);
    ASSERT_NO_FATAL_FAILURE(expect_own_tokens(*data.train));
    ASSERT_NO_FATAL_FAILURE(expect_own_tokens(*data.valid));
    EXPECT_TRUE(what != "cut tokens" || !data.remarks.empty());
  }
}

TEST_F(RowOriginTest, APartKnowsTheDocumentsOfTheWholeDataSet) {
  const auto data = build_gpt_datasets(config({store("a", 60, 0)}));
  EXPECT_EQ(data.train->documents(), (std::map<std::string, int64_t>{{dir_.file("a"), 60}}));
  EXPECT_EQ(data.valid->documents(), data.train->documents());
  EXPECT_THAT(data.train->samples_with(dir_.file("a"), 58), IsEmpty());  // of the test part
}

// Neighbouring sequences of one document are one part where they follow each other.
TEST_F(RowOriginTest, SequencesOfADocumentThatFollowEachOtherAreOnePart) {
  IndexedDatasetWriter writer(dir_.file("d"), TokenType::kInt32);
  int32_t token = 0;
  for (const auto& document : std::vector<std::vector<int>>{{3, 0, 4}, {}, {5}}) {
    for (const int length : document) {
      for (int i = 0; i < length; ++i) {
        writer.add_tokens({&token, 1});
        ++token;
      }
      writer.end_sequence();
    }
    writer.end_document();
  }
  writer.finish();
  GPTDatasetOptions options;
  options.seq_length = 8;
  options.shuffle = false;
  const auto indexed = std::make_shared<const IndexedDataset>(dir_.file("d"));
  const SequenceRange all{.begin = 0, .end = 4};
  EXPECT_THAT(GPTDataset(indexed, all, 3, options).origin(0).documents,
              ElementsAre(DocumentPart{0, 0, 7}, DocumentPart{2, 0, 2}));
  // The second sample begins with the last token of the first; the text begins again in it.
  EXPECT_THAT(GPTDataset(indexed, all, 3, options).origin(1).documents,
              ElementsAre(DocumentPart{2, 1, 4}, DocumentPart{0, 0, 5}));
  // Without the token that would be the last label; padded where the text ends.
  options.add_extra_token = false;
  options.drop_last_partial_sample = false;
  const GPTDataset padded(indexed, all, std::nullopt, options);
  ASSERT_EQ(padded.size(), 2);
  EXPECT_THAT(padded.origin(0).documents,
              ElementsAre(DocumentPart{0, 0, 7}, DocumentPart{2, 0, 1}));
  EXPECT_THAT(padded.origin(1).documents, ElementsAre(DocumentPart{2, 1, 4}));
}

TEST_F(RowOriginTest, BatchesKnowWhereTheirRowsComeFrom) {
  const auto train = build_gpt_datasets(config({store("a", 60, 0)})).train;
  TokenDataSource source(train);
  EXPECT_EQ(source.samples(), train.get());
  for (int64_t rank = 0; rank < 2; ++rank) {
    const Batch batch = source.micro_batch({3, 36}, 1, 2, 3, rank, 2);
    ASSERT_TRUE(batch.origin);
    for (int64_t row = 0; row < 3; ++row) {
      const int64_t sample = batch.sample_ids[static_cast<size_t>(row)];
      EXPECT_EQ(sample, 36 + 6 + rank * 3 + row);
      EXPECT_EQ(batch.origin(row), train->origin(sample));
      EXPECT_FALSE(batch.origin(row).recorded);
    }
    EXPECT_ERROR(batch.origin(3), IndexError, "row 3 of 3");
    EXPECT_ERROR(batch.origin(-1), IndexError, "row -1 of 3");
  }
  EXPECT_FALSE(Batch().origin);
}

TEST_F(RowOriginTest, RecordedRowsNameTheirFile) {
  const auto rows = [](int64_t count) {
    StepRows result{.rows = count, .seq = 2};
    result.tokens.assign(static_cast<size_t>(2 * count), 1);
    result.labels = result.tokens;
    result.loss_mask.assign(result.tokens.size(), 1.0F);
    return result;
  };
  for (const int64_t step : {1, 2}) {
    write_step(dir_.path(), step, 0, rows(3));
    write_step(dir_.path(), step, 1, rows(1));
  }
  StepDataSource source(dir_.path(), 0);
  EXPECT_EQ(source.samples(), nullptr);
  // Micro-batches of two rows, which need not end where a rank's file does.
  const Batch batch = source.micro_batch({1, 4}, 1, 2, 2, 0, 1);
  EXPECT_THAT(batch.sample_ids, ElementsAre(6, 7));
  const auto expect = [&](int64_t row, const std::string& file, int64_t file_row) {
    const RowOrigin origin = batch.origin(row);
    EXPECT_EQ(origin.dataset, dir_.path());
    EXPECT_THAT(origin.documents, IsEmpty());
    EXPECT_EQ(origin.recorded, (RecordedRow{dir_.file(file), file_row}));
  };
  expect(0, "step_2/rank_0/tokens.npy", 2);
  expect(1, "step_2/rank_1/tokens.npy", 0);
  EXPECT_ERROR(batch.origin(2), IndexError, "row 2 of 2");
  source.micro_batch({0, 0}, 0, 1, 4, 0, 1);  // another step is read: the batch keeps its own
  expect(0, "step_2/rank_0/tokens.npy", 2);
}

}  // namespace
}  // namespace row_origin_test
}  // namespace tapestry::data

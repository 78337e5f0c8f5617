#include "parallel_core/data/gpt_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "autograd/tensor/error.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::data {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;
using ::testing::Pair;

const std::vector<int32_t> kLengths = {5, 3, 8, 2, 7, 6};
using Entries = std::vector<std::pair<int64_t, int64_t>>;

GPTIndices indices_for(std::optional<int64_t> num_samples) {
  return build_gpt_indices(kLengths, {0, 6}, num_samples, 4, 1234);
}

Entries entries(const GPTIndices& indices) {
  Entries found;
  for (int64_t i = 0; i < indices.sample_documents.size(); ++i) {
    found.emplace_back(indices.sample_documents[i], indices.sample_offsets[i]);
  }
  return found;
}

std::vector<int64_t> order(const GPTIndices& indices) {
  std::vector<int64_t> found;
  for (int64_t i = 0; i < indices.shuffle_index.size(); ++i) {
    found.push_back(indices.shuffle_index[i]);
  }
  return found;
}

TEST(GPTIndices, OneEpoch) {
  const GPTIndices indices = indices_for(5);
  EXPECT_EQ(indices.num_epochs, 1);
  EXPECT_THAT(indices.document_index, ElementsAre(2, 1, 5, 0, 4, 3));
  EXPECT_EQ(entries(indices),
            (Entries{{0, 0}, {0, 4}, {1, 0}, {2, 1}, {2, 5}, {3, 3}, {4, 2}, {4, 6}}));
  EXPECT_THAT(order(indices), ElementsAre(5, 0, 3, 4, 2, 6, 1));
}

TEST(GPTIndices, LastEpochSeparate) {
  const GPTIndices indices = indices_for(9);
  EXPECT_EQ(indices.num_epochs, 2);
  EXPECT_TRUE(indices.separate_last_epoch);
  EXPECT_THAT(indices.document_index, ElementsAre(2, 1, 5, 0, 4, 3, 0, 4, 3, 2, 5, 1));
  EXPECT_EQ(entries(indices), (Entries{{0, 0},
                                       {0, 4},
                                       {1, 0},
                                       {2, 1},
                                       {2, 5},
                                       {3, 3},
                                       {4, 2},
                                       {4, 6},
                                       {6, 1},
                                       {7, 0},
                                       {7, 4},
                                       {8, 1},
                                       {9, 3},
                                       {9, 7},
                                       {10, 3},
                                       {11, 1}}));
  EXPECT_THAT(order(indices), ElementsAre(1, 0, 3, 2, 5, 4, 6, 10, 12, 9, 8, 13, 11, 14, 7));
}

TEST(GPTIndices, LastEpochMixed) {
  const GPTIndices indices = indices_for(13);
  EXPECT_EQ(indices.num_epochs, 2);
  EXPECT_FALSE(indices.separate_last_epoch);
  EXPECT_THAT(indices.document_index, ElementsAre(1, 2, 5, 2, 3, 4, 1, 0, 4, 5, 0, 3));
  EXPECT_THAT(order(indices), ElementsAre(7, 11, 2, 3, 1, 9, 5, 4, 0, 8, 6, 10, 13, 12, 14));
}

TEST(GPTIndices, WithoutACountOneEpochIsUsed) {
  EXPECT_EQ(order(indices_for(std::nullopt)), order(indices_for(5)));
  EXPECT_EQ(indices_for(0).num_samples(), 7);
}

TEST(GPTIndices, KeepsTheOrderOfTheDataOnRequest) {
  const GPTIndices indices = build_gpt_indices(kLengths, {1, 6}, 12, 4, 1234, 1,
                                               /*drop_last=*/true, /*shuffle=*/false);
  ASSERT_GE(indices.num_epochs, 2);
  for (size_t i = 0; i < indices.document_index.size(); ++i) {
    EXPECT_EQ(indices.document_index[i], 1 + static_cast<int32_t>(i % 5));
  }
  for (int64_t k = 0; k < indices.num_samples(); ++k) {
    EXPECT_EQ(indices.shuffle_index[k], k);
  }
}

TEST(GPTIndices, KeepsAShortLastSampleOnRequest) {
  const GPTIndices indices =
      build_gpt_indices(kLengths, {0, 6}, std::nullopt, 4, 1234, 1, /*drop_last=*/false);
  EXPECT_EQ(indices.num_samples(), 8);  // 30 / 4 rounded up
  EXPECT_THAT(entries(indices).back(), Pair(5, 1));
}

TEST(GPTIndices, AnEmptyLastDocumentMayEndAShortSample) {
  const std::vector<int32_t> lengths = {0, 3};
  // Whatever the order of the two documents, the last boundary is one token before an end.
  for (int64_t seed = 0; seed < 8; ++seed) {
    const GPTIndices indices =
        build_gpt_indices(lengths, {0, 2}, std::nullopt, 4, seed, 1, /*drop_last=*/false);
    ASSERT_EQ(indices.num_samples(), 1);
    const int32_t last = indices.document_index[1];
    EXPECT_THAT(entries(indices).back(), Pair(1, lengths[static_cast<size_t>(last)] - 1));
  }
}

TEST(GPTIndices, RefusesWhatCannotBe) {
  const std::vector<int32_t> empty = {0, 0};
  EXPECT_ERROR(build_gpt_indices(empty, {0, 2}, 1, 4, 1), ValueError, "have no tokens");
  EXPECT_ERROR(build_gpt_indices(kLengths, {0, 6}, std::nullopt, 31, 1), ValueError,
               "too few for one sample of 32");
  EXPECT_ERROR(build_gpt_indices(kLengths, {0, 7}, 1, 4, 1), ValueError, "not inside the 6");
  EXPECT_ERROR(build_gpt_indices(kLengths, {0, 6}, 1, 0, 1), ValueError, "seq_length: 0");
  EXPECT_ERROR(build_gpt_indices(kLengths, {0, 6}, -1, 4, 1), ValueError, "samples: -1");
  EXPECT_ERROR(build_gpt_indices(kLengths, {0, 6}, INT64_MAX, 4, 1), ValueError, "out of range");
  EXPECT_ERROR(build_gpt_indices(kLengths, {0, 6}, 1, 4, -1), ValueError, "seed: -1");
}

TEST(SplitSequences, DividesAndRounds) {
  const Split usual = split_sequences("969,30,1", 1000);
  EXPECT_EQ(usual[0]->begin, 0);
  EXPECT_EQ(usual[0]->end, 969);
  EXPECT_EQ(usual[1]->end, 999);
  EXPECT_EQ(usual[2]->end, 1000);
  const Split half = split_sequences("1,1", 5);  // 2.5 rounds to the even 2
  EXPECT_EQ(half[0]->end, 2);
  EXPECT_EQ(half[1]->begin, 2);
  EXPECT_EQ(half[1]->end, 5);
  EXPECT_FALSE(half[2].has_value());
  const Split last = split_sequences("0, 0, .5", 7);
  EXPECT_FALSE(last[0] || last[1]);
  EXPECT_EQ(last[2]->begin, 0);
  EXPECT_EQ(last[2]->end, 7);
  EXPECT_EQ(split_sequences("[98/1/1]", 100)[1]->begin, 98);
}

TEST(SplitSequences, RefusesNonsense) {
  for (const char* text : {"", "0,0,0", ",", "a", "1,b", "-1,1", "1e3,1", "1.2.3", "1,2,3,4"}) {
    EXPECT_ERROR(split_sequences(text, 10), ValueError, std::string("split: \"") + text + "\"");
  }
}

TEST(SplitTokens, CutsInsideSequences) {
  const std::vector<int32_t> lengths = {3, 0, 5, 0, 2};
  const Split parts = split_tokens("5,3,2", lengths, 1);
  EXPECT_EQ(count_tokens(lengths, *parts[0]), 5);
  EXPECT_EQ(parts[0]->end, 3);
  EXPECT_EQ(parts[0]->drop, 3);
  EXPECT_EQ(parts[1]->begin, 2);
  EXPECT_EQ(parts[1]->skip, 2);
  EXPECT_EQ(count_tokens(lengths, *parts[1]), 3);
  EXPECT_EQ(parts[2]->begin, 4);
  EXPECT_EQ(count_tokens(lengths, *parts[2]), 2);
  // nanoGPT's int(0.9 n): rounded down, where Megatron's documents are rounded to the nearest.
  const std::vector<int32_t> text = {1115394};
  EXPECT_EQ(count_tokens(text, *split_tokens("90,10", text, 65)[0]), 1003854);
  // Whatever the shares add up to, the last one ends at the end.
  for (const char* split : {"1", "0,1", "0,0,1", "0.1,0.2", "1,1,1", "7,7", "969,30,1"}) {
    int64_t sum = 0;
    for (const auto& part : split_tokens(split, lengths, 0)) {
      sum += part ? count_tokens(lengths, *part) : 0;
    }
    EXPECT_EQ(sum, 10) << split;
  }
}

TEST(SplitTokens, ValidationGetsOneSample) {
  const std::vector<int32_t> lengths = {600, 400};
  EXPECT_EQ(count_tokens(lengths, *split_tokens("969,30,1", lengths, 65)[1]), 65);
  EXPECT_EQ(count_tokens(lengths, *split_tokens("969,30,1", lengths, 65)[0]), 934);
  EXPECT_EQ(count_tokens(lengths, *split_tokens("969,30,1", lengths, 20)[1]), 30);
  EXPECT_EQ(count_tokens(lengths, *split_tokens("969,30,1", lengths, 501)[1]), 30);  // no room
}

TEST(SplitDataset, PrefersDocuments) {
  const auto usable = [](const std::vector<int32_t>& lengths, int64_t sample) {
    return split_dataset("8,1,1", lengths, sample).by_tokens ? "tokens" : "documents";
  };
  EXPECT_STREQ(usable(std::vector<int32_t>(10, 20), 20), "documents");
  EXPECT_STREQ(usable(std::vector<int32_t>(10, 20), 21), "tokens");
  EXPECT_STREQ(usable({100, 100}, 20), "tokens");
  EXPECT_STREQ(usable({200}, 20), "tokens");
  EXPECT_STREQ(usable({200}, 200), "documents");  // neither has enough
}

// A range that begins and ends inside sequences is as a dataset of what lies in it.
TEST(GPTIndices, OfAPartAreThoseOfItsTokens) {
  const GPTIndices part = build_gpt_indices(kLengths, {1, 5, 0, 2}, 9, 4, 1234);
  const std::vector<int32_t> own = {3, 8, 2, 5};
  const GPTIndices same = build_gpt_indices(own, {0, 4}, 9, 4, 1234);
  ASSERT_EQ(part.num_samples(), same.num_samples());
  for (int64_t i = 0; i <= part.num_samples(); ++i) {
    EXPECT_EQ(part.sample_documents[i], same.sample_documents[i]);
    EXPECT_EQ(part.sample_offsets[i], same.sample_offsets[i]);
  }
}

// Sequence s of the test dataset holds 100 s, 100 s + 1, ...; id 7 stands for the end of document.
class GPTDatasetTest : public ::testing::Test {
 protected:
  std::shared_ptr<const IndexedDataset> store(const std::vector<std::vector<int32_t>>& sequences) {
    IndexedDatasetWriter writer(dir_.file("d"), TokenType::kUInt16);
    for (const auto& sequence : sequences) {
      writer.add_tokens(sequence);
      writer.end_sequence();
      writer.end_document();
    }
    writer.finish();
    return std::make_shared<const IndexedDataset>(dir_.file("d"));
  }
  std::shared_ptr<const IndexedDataset> numbered() {
    std::vector<std::vector<int32_t>> sequences;
    for (size_t s = 0; s < kLengths.size(); ++s) {
      auto& sequence = sequences.emplace_back();
      for (int32_t i = 0; i < kLengths[s]; ++i) {
        sequence.push_back(static_cast<int32_t>(100 * s) + i);
      }
    }
    return store(sequences);
  }
  TempDir dir_;
};

TEST_F(GPTDatasetTest, FetchesSamplesAcrossDocuments) {
  const GPTDataset dataset(numbered(), {0, 6}, 5, {.seq_length = 4, .vocab_size = 600});
  ASSERT_EQ(dataset.size(), 7);
  // Documents in the order 2 1 5 0 4 3: 200..207 100..102 500..505 0..4 400..406 300 301.
  const std::vector<int64_t> text = {200, 201, 202, 203, 204, 205, 206, 207, 100, 101, 102,
                                     500, 501, 502, 503, 504, 505, 0,   1,   2,   3,   4,
                                     400, 401, 402, 403, 404, 405, 406, 300, 301};
  for (int64_t k = 0; k < dataset.size(); ++k) {
    const auto first = text.begin() + 4 * dataset.indices().shuffle_index[k];
    const Sample sample = dataset.get(k);
    EXPECT_THAT(sample.tokens, ElementsAreArray(first, first + 4));
    EXPECT_THAT(sample.labels, ElementsAreArray(first + 1, first + 5));
    EXPECT_THAT(sample.loss_mask, ElementsAre(1, 1, 1, 1));
    EXPECT_THAT(sample.position_ids, IsEmpty());
    EXPECT_THAT(sample.document_starts, IsEmpty());
  }
  EXPECT_ERROR(dataset.get(7), IndexError, "sample 7 of 7");
  EXPECT_ERROR(dataset.get(-1), IndexError, "sample -1");
}

TEST_F(GPTDatasetTest, EveryTokenIsAnInputOnceInAnEpoch) {
  const GPTDataset dataset(numbered(), {0, 6}, std::nullopt, {.seq_length = 3});
  std::multiset<int64_t> seen;
  for (int64_t k = 0; k < dataset.size(); ++k) {
    const Sample sample = dataset.get(k);
    seen.insert(sample.tokens.begin(), sample.tokens.end());
  }
  EXPECT_EQ(seen.size(), 30U);
  EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 30U);
}

TEST_F(GPTDatasetTest, PadsAShortLastSample) {
  const GPTDataset dataset(store({{1, 2, 3, 4, 5, 6}}), {0, 1}, std::nullopt,
                           {.seq_length = 4, .drop_last_partial_sample = false});
  ASSERT_EQ(dataset.size(), 2);
  const int64_t last = dataset.indices().shuffle_index[0] == 1 ? 0 : 1;
  const Sample sample = dataset.get(last);
  EXPECT_THAT(sample.tokens, ElementsAre(5, 6, 0, 0));
  EXPECT_THAT(sample.labels, ElementsAre(6, 0, 0, 0));
  EXPECT_THAT(sample.loss_mask, ElementsAre(1, 0, 0, 0));
}

TEST_F(GPTDatasetTest, MasksPaddingUnlessItIsTheEndOfDocument) {
  const auto text = store({{1, 7, 2, 7, 7}});
  const Sample padded =
      GPTDataset(text, {0, 1}, std::nullopt, {.seq_length = 4, .pad_id = 7}).get(0);
  EXPECT_THAT(padded.tokens, ElementsAre(1, 0, 2, 0));
  EXPECT_THAT(padded.labels, ElementsAre(0, 2, 0, 0));
  EXPECT_THAT(padded.loss_mask, ElementsAre(0, 1, 0, 0));
  const Sample plain =
      GPTDataset(text, {0, 1}, std::nullopt, {.seq_length = 4, .eod_id = 7, .pad_id = 7}).get(0);
  EXPECT_THAT(plain.tokens, ElementsAre(1, 7, 2, 7));
  EXPECT_THAT(plain.loss_mask, ElementsAre(1, 1, 1, 1));
}

TEST_F(GPTDatasetTest, EndOfDocumentOptions) {
  const GPTDataset dataset(store({{1, 7, 2, 3, 7, 4, 7}}), {0, 1}, std::nullopt,
                           {.seq_length = 6,
                            .eod_id = 7,
                            .eod_mask_loss = true,
                            .reset_position_ids = true,
                            .reset_attention_mask = true});
  const Sample sample = dataset.get(0);
  EXPECT_THAT(sample.tokens, ElementsAre(1, 7, 2, 3, 7, 4));
  EXPECT_THAT(sample.loss_mask, ElementsAre(1, 0, 1, 1, 0, 1));
  EXPECT_THAT(sample.position_ids, ElementsAre(0, 1, 0, 1, 2, 0));
  EXPECT_THAT(sample.document_starts, ElementsAre(0, 2, 5));
  EXPECT_ERROR(GPTDataset(store({{1, 2, 3}}), {0, 1}, 1, {.seq_length = 2, .eod_mask_loss = true}),
               ValueError, "end-of-document id");
}

TEST_F(GPTDatasetTest, WithoutTheExtraTokenTheLastLabelIsMasked) {
  const GPTDataset dataset(store({{1, 2, 3, 4}}), {0, 1}, std::nullopt,
                           {.seq_length = 4, .add_extra_token = false});
  ASSERT_EQ(dataset.size(), 1);
  const Sample sample = dataset.get(0);
  EXPECT_THAT(sample.tokens, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(sample.labels, ElementsAre(2, 3, 4, 0));
  EXPECT_THAT(sample.loss_mask, ElementsAre(1, 1, 1, 0));
}

TEST_F(GPTDatasetTest, NamesATokenOutOfRange) {
  const GPTDataset dataset(store({{1, 2}, {3, 600, 4}}), {1, 2}, std::nullopt,
                           {.seq_length = 2, .vocab_size = 600});
  EXPECT_ERROR(dataset.get(0), ValueError, "d.bin: sequence 1, position 1: token id 600");
  EXPECT_ERROR(dataset.get(0), ValueError, "vocabulary of 600");
}

}  // namespace
}  // namespace tapestry::data

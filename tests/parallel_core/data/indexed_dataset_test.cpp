#include "parallel_core/data/indexed_dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "autograd/tensor/error.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::data {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string from_hex(std::string_view hex) {
  std::string bytes;
  std::string digits;
  for (const char c : hex) {
    if (c != ' ') {
      digits.push_back(c);
    }
  }
  for (size_t i = 0; i < digits.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// u16, sequences of 3 and 2 tokens, one document each; a known file, not one of our writer's.
const std::string kIndex = from_hex(
    "4d4d494449445800 00 0100000000000000 08 0200000000000000 0300000000000000 03000000 02000000"
    "0000000000000000 0600000000000000 0000000000000000 0100000000000000 0200000000000000");
const std::string kTokens = from_hex("0100 0200 0300 ffff 0000");

class IndexedDatasetTest : public ::testing::Test {
 protected:
  std::string store(std::string_view idx, std::string_view bin) {
    dir_.write("d.idx", idx);
    dir_.write("d.bin", bin);
    return dir_.file("d");
  }
  TempDir dir_;
};

TEST_F(IndexedDatasetTest, WriterGivesTheKnownBytes) {
  ASSERT_EQ(kIndex.size(), 82U);
  IndexedDatasetWriter writer(dir_.file("w"), TokenType::kUInt16);
  writer.add_tokens(std::vector<int32_t>{1, 2});
  writer.add_tokens(std::vector<int32_t>{3});
  writer.end_sequence();
  writer.end_document();
  writer.add_tokens(std::vector<int32_t>{65535, 0});
  writer.end_sequence();
  writer.end_document();
  EXPECT_FALSE(std::filesystem::exists(dir_.file("w.bin")));
  writer.finish();
  EXPECT_EQ(dir_.read("w.idx"), kIndex);
  EXPECT_EQ(dir_.read("w.bin"), kTokens);
  EXPECT_THAT(dir_.names(), ElementsAre("w.bin", "w.idx"));
}

TEST_F(IndexedDatasetTest, ReaderReadsTheKnownBytes) {
  const IndexedDataset dataset(store(kIndex, kTokens));
  EXPECT_EQ(dataset.token_type(), TokenType::kUInt16);
  EXPECT_EQ(dataset.num_sequences(), 2);
  EXPECT_EQ(dataset.num_documents(), 2);
  EXPECT_EQ(dataset.num_tokens(), 5);
  EXPECT_TRUE(dataset.contiguous());
  EXPECT_THAT(dataset.sequence(0), ElementsAre(1, 2, 3));
  EXPECT_THAT(dataset.sequence(1), ElementsAre(65535, 0));
  std::vector<int64_t> part{7};
  dataset.read(0, 1, 2, part);
  EXPECT_THAT(part, ElementsAre(7, 2, 3));
  EXPECT_ERROR(dataset.read(0, 2, 2, part), IndexError, "sequence 0 has 3 tokens");
  EXPECT_ERROR(dataset.sequence(2), IndexError, "sequence 2 of 2");
}

TEST_F(IndexedDatasetTest, EveryTokenTypeRoundTrips) {
  const struct {
    TokenType type;
    int32_t low;
    int32_t high;
  } cases[] = {{TokenType::kUInt8, 0, 255},
               {TokenType::kInt8, -128, 127},
               {TokenType::kInt16, -32768, 32767},
               {TokenType::kUInt16, 0, 65535},
               {TokenType::kInt32, INT32_MIN, INT32_MAX},
               {TokenType::kInt64, INT32_MIN, INT32_MAX}};
  for (const auto& c : cases) {
    const std::string prefix = dir_.file("t" + std::to_string(static_cast<int>(c.type)));
    IndexedDatasetWriter writer(prefix, c.type);
    writer.add_tokens(std::vector<int32_t>{c.low, 1, c.high});
    writer.end_sequence();
    writer.end_document();
    writer.end_document();  // an empty one
    writer.finish();
    const IndexedDataset dataset(prefix);
    EXPECT_THAT(dataset.sequence(0), ElementsAre(c.low, 1, c.high));
    EXPECT_THAT(dataset.document_boundaries(), ElementsAre(0, 1, 1));
    if (c.high < INT32_MAX) {
      IndexedDatasetWriter bad(prefix, c.type);
      EXPECT_ERROR(bad.add_tokens(std::vector<int32_t>{c.high + 1}), ValueError, "does not fit");
      EXPECT_ERROR(bad.add_tokens(std::vector<int32_t>{c.low - 1}), ValueError, "does not fit");
    }
  }
}

TEST_F(IndexedDatasetTest, VocabularyDecidesTheType) {
  EXPECT_EQ(token_type_for_vocabulary(65499), TokenType::kUInt16);
  EXPECT_EQ(token_type_for_vocabulary(65500), TokenType::kInt32);
}

struct Damage {
  const char* name;
  std::string idx;
  std::string bin;
  const char* message;
};

class DamagedDataset : public ::testing::TestWithParam<Damage> {};

TEST_P(DamagedDataset, IsRefusedWithAReason) {
  const TempDir dir;
  dir.write("d.idx", GetParam().idx);
  dir.write("d.bin", GetParam().bin);
  EXPECT_ERROR(IndexedDataset(dir.file("d")), IoError, GetParam().message);
  EXPECT_ERROR(IndexedDataset(dir.file("d")), IoError, dir.file("d"));
}

INSTANTIATE_TEST_SUITE_P(
    All,
    DamagedDataset,
    ::testing::Values(
        Damage{"EmptyIndex", "", kTokens, "fewer than the header"},
        Damage{"HeaderCut", kIndex.substr(0, 33), kTokens, "fewer than the header"},
        Damage{"Magic", patched<char>(kIndex, 0, 'X'), kTokens, "offset 0, magic"},
        Damage{"Version", patched<uint64_t>(kIndex, 9, 2), kTokens, "offset 9, version: 2"},
        Damage{"UnknownCode", patched<uint8_t>(kIndex, 17, 9), kTokens, "offset 17, dtype code: 9"},
        Damage{"ZeroCode", patched<uint8_t>(kIndex, 17, 0), kTokens, "offset 17, dtype code: 0"},
        Damage{"FloatCode", patched<uint8_t>(kIndex, 17, 7), kTokens, "floating-point"},
        Damage{"MoreSequences", patched<uint64_t>(kIndex, 18, 3), kTokens, "names 3 sequences"},
        Damage{"FewerBoundaries", patched<uint64_t>(kIndex, 26, 2), kTokens, "2 boundaries"},
        Damage{"HugeSequences", patched<uint64_t>(kIndex, 18, UINT64_MAX), kTokens,
               "more than any"},
        Damage{"WrappingSequences", patched<uint64_t>(kIndex, 18, (uint64_t{1} << 62U) + 2),
               kTokens, "more than any"},
        Damage{"HugeBoundaries", patched<uint64_t>(kIndex, 26, UINT64_MAX / 8), kTokens,
               "more than"},
        Damage{"NoBoundaries",
               patched<uint64_t>(patched<uint64_t>(kIndex, 18, 0), 26, 0).substr(0, 34), kTokens,
               "offset 26, boundaries: 0"},
        Damage{"CutByOne", kIndex.substr(0, 81), kTokens, "truncated or damaged"},
        Damage{"OneByteMore", kIndex + "x", kTokens, "truncated or damaged"},
        Damage{"Modes", kIndex + std::string(2, '\0'), kTokens, "multimodal"},
        Damage{"NegativeLength", patched<int32_t>(kIndex, 34, -1), kTokens, "sequence 0: -1"},
        Damage{"LongLength", patched<int32_t>(kIndex, 38, 3), kTokens, "which has only 10"},
        Damage{"LargestLength", patched<int32_t>(kIndex, 38, INT32_MAX), kTokens, "which has only"},
        Damage{"NegativeOffset", patched<int64_t>(kIndex, 42, -2), kTokens, "sequence 0: -2"},
        Damage{"OddOffset", patched<int64_t>(kIndex, 50, 5), kTokens, "sequence 1: 5"},
        Damage{"LargestOffset", patched<int64_t>(kIndex, 50, INT64_MAX - 1), kTokens,
               "has only 10"},
        Damage{"FirstBoundary", patched<int64_t>(kIndex, 58, 1), kTokens,
               "first document boundary"},
        Damage{"FallingBoundary", patched<int64_t>(kIndex, 66, 3), kTokens, "document boundary 2"},
        Damage{"LastBoundary", patched<int64_t>(kIndex, 74, 1), kTokens, "last document boundary"},
        Damage{"BinCut", kIndex, kTokens.substr(0, 9), "the .bin file is truncated"},
        Damage{"BinEmpty", kIndex, "", "the .bin file is truncated"}),
    [](const auto& info) { return info.param.name; });

TEST_F(IndexedDatasetTest, MissingFilesAreNamed) {
  EXPECT_ERROR(IndexedDataset(dir_.file("none")), IoError, "none.bin: cannot be read");
  dir_.write("d.bin", kTokens);
  EXPECT_ERROR(IndexedDataset(dir_.file("d")), IoError, "d.idx: cannot be read");
  EXPECT_ERROR(IndexedDataset(dir_.file("d.bin")), IoError, "is given without \".bin\"");
}

TEST_F(IndexedDatasetTest, AFileThatShrinksUnderTheReaderIsAnError) {
  const IndexedDataset dataset(store(kIndex, kTokens));
  std::filesystem::resize_file(dir_.file("d.bin"), 7);
  EXPECT_THAT(dataset.sequence(0), ElementsAre(1, 2, 3));
  EXPECT_ERROR(dataset.sequence(1), IoError, "d.bin");
}

TEST_F(IndexedDatasetTest, SequencesNeedNotFollowEachOther) {
  const IndexedDataset dataset(store(patched<int64_t>(kIndex, 50, 0), kTokens));
  EXPECT_FALSE(dataset.contiguous());
  EXPECT_THAT(dataset.sequence(1), ElementsAre(1, 2));
}

TEST_F(IndexedDatasetTest, AnAbandonedWriterLeavesNothing) {
  {
    IndexedDatasetWriter writer(dir_.file("w"), TokenType::kInt32);
    writer.add_tokens(std::vector<int32_t>(1U << 20U, 5));
  }
  EXPECT_THAT(dir_.names(), IsEmpty());
  IndexedDatasetWriter writer(dir_.file("w"), TokenType::kInt32);
  writer.add_tokens(std::vector<int32_t>{1});
  EXPECT_ERROR(writer.end_document(), RuntimeError, "inside a sequence");
  EXPECT_ERROR(writer.finish(), RuntimeError, "was not ended");
  EXPECT_ERROR(IndexedDatasetWriter(dir_.file("no/w"), TokenType::kInt32), IoError, "w.bin");
}

TEST_F(IndexedDatasetTest, AReplacedDatasetStaysReadable) {
  const auto old = std::make_unique<IndexedDataset>(store(kIndex, kTokens));
  IndexedDatasetWriter writer(dir_.file("d"), TokenType::kUInt16);
  writer.add_tokens(std::vector<int32_t>{9});
  writer.end_sequence();
  writer.end_document();
  writer.finish();
  EXPECT_THAT(old->sequence(0), ElementsAre(1, 2, 3));
  EXPECT_THAT(IndexedDataset(dir_.file("d")).sequence(0), ElementsAre(9));
}

}  // namespace
}  // namespace tapestry::data

#include "parallel_core/post_training/rows/pack_sequences.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/post_training/rows/unit_source.h"

namespace tapestry::post_training {
namespace {

using testing::ElementsAre;

// Pairs whose ids say whose they are.
SequenceSet two_pairs() {
  SequenceSet set(2);
  set.add(std::vector<int32_t>{1, 2}, std::vector<int32_t>{3, 4, 5});
  set.add(std::vector<int32_t>{1, 2}, std::vector<int32_t>{6});
  set.add(std::vector<int32_t>{11}, std::vector<int32_t>{12});
  set.add(std::vector<int32_t>{11}, std::vector<int32_t>{13, 14});
  return set;
}

TEST(PackSequences, SequencesShareRowsAsDocuments) {
  const std::vector<int64_t> numbers = {0, 1};
  const data::Batch batch = pack_sequences(two_pairs(), numbers, {.seq_length = 16, .unit = 2});
  EXPECT_EQ(batch.batch, 1);
  EXPECT_EQ(batch.seq, 8);
  EXPECT_THAT(batch.tokens, ElementsAre(1, 2, 3, 4, 5, 1, 2, 6));
  EXPECT_THAT(batch.labels, ElementsAre(2, 3, 4, 5, 0, 2, 6, 0));
  EXPECT_THAT(batch.loss_mask, ElementsAre(0, 1, 1, 1, 0, 0, 1, 0));
  EXPECT_THAT(batch.position_ids, ElementsAre(0, 1, 2, 3, 4, 0, 1, 2));
  EXPECT_THAT(batch.document_starts, ElementsAre(ElementsAre(0, 5)));
  EXPECT_THAT(batch.sequences,
              ElementsAre(ElementsAre(
                  data::RowSequence{.number = 0, .first = 0, .tokens = 5, .prompt = 2},
                  data::RowSequence{.number = 1, .first = 5, .tokens = 3, .prompt = 2})));
}

TEST(PackSequences, WithoutPackingEachHasARow) {
  const std::vector<int64_t> numbers = {2, 3};
  const data::Batch batch = pack_sequences(
      two_pairs(), numbers, {.seq_length = 16, .unit = 1, .pad_id = 9, .packing = false});
  EXPECT_EQ(batch.batch, 2);
  EXPECT_THAT(batch.tokens, ElementsAre(11, 12, 9, 11, 13, 14));
  EXPECT_THAT(batch.loss_mask, ElementsAre(1, 0, 0, 1, 1, 0));
}

TEST(PackSequences, PaddingThatCountsSeesItsRow) {
  const std::vector<int64_t> numbers = {2, 3};
  RowRoom room = {.seq_length = 16, .unit = 2, .pad_id = 9};
  room.counted = CountedPositions::kPaddedRowsButLast;
  const data::Batch batch = pack_sequences(two_pairs(), numbers, room, /*longest=*/5);
  EXPECT_EQ(batch.batch, 2);
  EXPECT_THAT(batch.tokens, ElementsAre(11, 12, 9, 9, 9, 9, 11, 13, 14, 9, 9, 9));
  EXPECT_THAT(batch.labels, ElementsAre(12, 9, 9, 9, 9, 9, 13, 14, 9, 9, 9, 9));
  EXPECT_THAT(batch.loss_mask, ElementsAre(1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0, 0));
  EXPECT_THAT(batch.position_ids, ElementsAre(0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5));
  EXPECT_THAT(batch.attention_mask, ElementsAre(0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1));
  EXPECT_TRUE(batch.document_starts.empty());
  room.counted = CountedPositions::kPaddedRows;
  EXPECT_THAT(pack_sequences(two_pairs(), numbers, room, 5).loss_mask,
              ElementsAre(1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0));
  room.counted = CountedPositions::kSequences;
  EXPECT_THAT(pack_sequences(two_pairs(), numbers, room).loss_mask, ElementsAre(1, 0, 1, 1, 0, 0));
}

TEST(PackSequences, OfNothingThereIsARowOfPadding) {
  const data::Batch batch = pack_sequences(two_pairs(), {}, {.seq_length = 16, .unit = 4});
  EXPECT_EQ(batch.batch, 1);
  EXPECT_THAT(batch.loss_mask, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(batch.sequences, ElementsAre(testing::IsEmpty()));
}

TEST(PackSequences, TooLongIsRefused) {
  const std::vector<int64_t> numbers = {0};
  EXPECT_THROW(pack_sequences(two_pairs(), numbers, {.seq_length = 4}), ValueError);
}

// All sequences of a step, in the order of ranks and micro-batches.
std::vector<int64_t> drawn(int64_t micro_batches, int64_t rows, int64_t ranks) {
  SequenceSet set(1);
  for (int32_t i = 0; i < 12; ++i) {
    set.add(std::vector<int32_t>{i}, std::vector<int32_t>{i});
  }
  UnitSource source(std::make_shared<SequenceSet>(set), UnitOrder(12, /*shuffle=*/true, 7),
                    {.seq_length = 2});
  std::vector<int64_t> all;
  for (int64_t m = 0; m < micro_batches; ++m) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const data::Batch batch =
          source.micro_batch({.step = 1, .first_sample = 8}, m, micro_batches, rows, rank, ranks);
      for (const auto& row : batch.sequences) {
        all.push_back(row.front().number);
      }
    }
  }
  return all;
}

TEST(UnitSource, AStepHasTheSameUnitsInEveryLayout) {
  const std::vector<int64_t> whole = drawn(1, 8, 1);
  EXPECT_EQ(drawn(1, 4, 2), whole);
  EXPECT_EQ(drawn(2, 2, 2), whole);
}

TEST(UnitOrder, AnEpochHasEveryUnitOnce) {
  UnitOrder order(5, /*shuffle=*/true, 3);
  std::vector<int64_t> first;
  std::vector<int64_t> second;
  for (int64_t k = 0; k < 5; ++k) {
    second.push_back(order.unit(5 + k));
    first.push_back(order.unit(k));
  }
  EXPECT_NE(first, second);
  EXPECT_THAT(first, testing::UnorderedElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(second, testing::UnorderedElementsAre(0, 1, 2, 3, 4));
  UnitOrder same(5, /*shuffle=*/true, 3, EpochOrder::kOfFirst);
  EXPECT_EQ(same.unit(7), same.unit(2));
  UnitOrder in_order(3, /*shuffle=*/false, 3);
  EXPECT_EQ(in_order.unit(4), 1);
}

TEST(UnitOrder, AnEpochEndsWithAStep) {
  UnitOrder order(5, /*shuffle=*/false, 3, EpochOrder::kOwn, /*step=*/4);
  EXPECT_EQ(order.unit(4), 4);
  EXPECT_EQ(order.unit(5), UnitOrder::kNone);
  EXPECT_EQ(order.epoch(7), 0);
  EXPECT_EQ(order.epoch(8), 1);
  EXPECT_EQ(order.unit(8), 0);
}

}  // namespace
}  // namespace tapestry::post_training

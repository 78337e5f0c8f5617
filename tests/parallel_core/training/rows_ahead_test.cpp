// What layers that predict further tokens read and predict, from the rows of a micro-batch.
#include "parallel_core/training/step/rows_ahead.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "parallel_core/training/step/forward_step.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;

data::Batch five_tokens() {
  data::Batch batch;
  batch.batch = 1;
  batch.seq = 5;
  batch.tokens = {10, 11, 12, 13, 14};
  batch.labels = {11, 12, 13, 14, 15};
  batch.loss_mask = {1, 1, 0, 1, 1};
  batch.sample_ids = {0};
  return batch;
}

TEST(RowsAhead, AreMovedByTheDepth) {
  const RowsAhead one = rows_ahead(five_tokens(), 1);
  EXPECT_THAT(one.tokens, ElementsAre(11, 12, 13, 14, 15));
  EXPECT_THAT(one.labels, ElementsAre(12, 13, 14, 15, 0));
  EXPECT_THAT(one.loss_mask, ElementsAre(1, 0, 1, 1, 0));
  const RowsAhead two = rows_ahead(five_tokens(), 2);
  EXPECT_THAT(two.tokens, ElementsAre(12, 13, 14, 15, 0));
  EXPECT_THAT(two.labels, ElementsAre(13, 14, 15, 0, 0));
  EXPECT_THAT(two.loss_mask, ElementsAre(0, 1, 1, 0, 0));
  EXPECT_EQ(tokens_that_count_ahead(five_tokens(), 2), 2);
  const RowsAhead far = rows_ahead(five_tokens(), 9);
  EXPECT_THAT(far.tokens, ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT(far.loss_mask, ElementsAre(0, 0, 0, 0, 0));
}

TEST(RowsAhead, DoNotCountAcrossDocuments) {
  data::Batch batch = five_tokens();
  batch.loss_mask.clear();
  batch.document_starts = {{0, 3}};
  // The label of position 1 is token 3, of another document; that of position 0 is token 2.
  EXPECT_THAT(rows_ahead(batch, 1).loss_mask, ElementsAre(1, 0, 0, 1, 0));
  EXPECT_THAT(rows_ahead(batch, 2).loss_mask, ElementsAre(0, 0, 0, 0, 0));
  batch.document_starts = {{3}};
  EXPECT_THAT(rows_ahead(batch, 1).loss_mask, ElementsAre(1, 0, 0, 1, 0));
  batch.document_starts = {{}};
  EXPECT_THAT(rows_ahead(batch, 2).loss_mask, ElementsAre(1, 1, 1, 0, 0));
}

TEST(RowsAhead, OfEachRowByItself) {
  data::Batch batch = five_tokens();
  batch.batch = 2;
  batch.tokens.insert(batch.tokens.end(), {20, 21, 22, 23, 24});
  batch.labels.insert(batch.labels.end(), {21, 22, 23, 24, -100});
  batch.loss_mask.insert(batch.loss_mask.end(), {1, 1, 1, 1, 0});
  batch.document_starts = {{0}, {0, 4}};
  const RowsAhead rows = rows_ahead(batch, 1);
  EXPECT_THAT(rows.tokens, ElementsAre(11, 12, 13, 14, 15, 21, 22, 23, 24, 0));
  EXPECT_THAT(rows.loss_mask, ElementsAre(1, 0, 1, 1, 0, 1, 1, 0, 0, 0));
}

TEST(RowsAhead, NeedLabelsAndADepth) {
  data::Batch batch = five_tokens();
  EXPECT_THROW(rows_ahead(batch, 0), ValueError);
  EXPECT_EQ(to_model_input(batch, 1, 2).ahead.size(), 2U);
  EXPECT_TRUE(to_model_input(batch).ahead.empty());
  batch.labels.clear();
  EXPECT_THROW(rows_ahead(batch, 1), ValueError);
  EXPECT_TRUE(to_model_input(batch, 1, 2).ahead.empty());
}

}  // namespace
}  // namespace tapestry

#include "diagnosis/verify/faults/batch_difference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

using testing::make_batch;

class BatchDifferences : public ::testing::Test {
 protected:
  void expect(const std::string& tensor, const std::string& detail, std::optional<int64_t> sample) {
    const auto found = first_difference(ours_, theirs_);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->tensor, tensor);
    EXPECT_THAT(found->detail, ::testing::HasSubstr(detail));
    EXPECT_EQ(found->sample, sample);
  }

  const AllConfig config_ = testing::small_config();
  data::Batch ours_ = make_batch(config_, 2, 40);
  data::Batch theirs_ = make_batch(config_, 2, 40);
};

TEST_F(BatchDifferences, AreNoneOfEqualBatches) {
  EXPECT_FALSE(first_difference(ours_, theirs_));
  // Positions that are left out count from 0.
  for (int64_t i = 0; i < 16; ++i) {
    ours_.position_ids.push_back(i % 8);
  }
  EXPECT_FALSE(first_difference(ours_, theirs_));
}

TEST_F(BatchDifferences, NameWhereTheyAre) {
  theirs_.attention_mask.assign(2 * 8 * 8, 0);
  ours_.attention_mask = theirs_.attention_mask;
  ours_.attention_mask[64 + 3] = 1;
  expect("attention_mask", "row 1, position 3: hidden against visible", 41);
  ours_.document_starts = {{0}, {0, 4}};
  theirs_.document_starts = {{0}, {0, 5}};
  expect("document_starts", "other positions", {});
  for (int64_t i = 0; i < 16; ++i) {
    ours_.position_ids.push_back(i % 8 + 1);
  }
  expect("position_ids", "row 0, position 0: 1 against 0", 40);
  ours_.loss_mask[9] = 1 - ours_.loss_mask[9];
  expect("loss_mask", "row 1, position 1", 41);
  ours_.labels[7] += 1;
  expect("labels", "row 0, position 7", 40);
  ours_.tokens[15] += 1;
  expect("tokens", "row 1, position 7", 41);
  ours_ = make_batch(config_, 3, 40);
  expect("tokens", "3 x 8 tokens against 2 x 8", {});
}

TEST_F(BatchDifferences, SeeWhatOneSideLacks) {
  ours_.attention_mask.assign(2 * 8 * 8, 0);
  expect("attention_mask", "128 numbers against 0", {});
}

}  // namespace
}  // namespace tapestry

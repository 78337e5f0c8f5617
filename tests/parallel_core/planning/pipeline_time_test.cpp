#include "parallel_core/planning/time/pipeline_time.h"

#include <gtest/gtest.h>

namespace tapestry::planning {
namespace {

PipelineWorkload even(int stages, int chunks, int64_t micro_batches) {
  return {.passes = std::vector<std::vector<PassTime>>(
              static_cast<size_t>(stages),
              std::vector<PassTime>(static_cast<size_t>(chunks), {.forward = 1, .backward = 2})),
          .micro_batches = micro_batches,
          .message = 0,
          .ranks_of_stage = 1,
          .cores = static_cast<double>(stages)};
}

TEST(PipelineTime, OfOneStageIsTheSum) { EXPECT_DOUBLE_EQ(pipeline_seconds(even(1, 1, 5)), 15); }

// (m + p - 1) (f + b), arXiv:1909.02505.
TEST(PipelineTime, HasTheBubbleOfEvenStages) {
  EXPECT_DOUBLE_EQ(pipeline_seconds(even(2, 1, 4)), 15);
  EXPECT_DOUBLE_EQ(pipeline_seconds(even(4, 1, 8)), 33);
}

// (m c + p - 1) (f + b) of chunks: arXiv:2104.04473.
TEST(PipelineTime, InterleavedHasLessOfIt) {
  EXPECT_DOUBLE_EQ(pipeline_seconds(even(2, 2, 4)), (4 * 2 + 1) * 3);
}

TEST(PipelineTime, GoesBySlowestStage) {
  PipelineWorkload work = even(2, 1, 100);
  work.passes[1][0] = {.forward = 2, .backward = 4};
  EXPECT_DOUBLE_EQ(pipeline_seconds(work), 100 * 6 + 3);
}

TEST(PipelineTime, MessagesDelayWhatWaitsForThem) {
  PipelineWorkload work = even(2, 1, 1);
  work.message = 10;
  EXPECT_DOUBLE_EQ(pipeline_seconds(work), 1 + 10 + 3 + 10 + 2);
}

// Whoever waits leaves its core to the others: with one core nothing is lost to the bubble.
TEST(PipelineTime, RanksShareCores) {
  PipelineWorkload work = even(2, 1, 4);
  work.cores = 1;
  EXPECT_NEAR(pipeline_seconds(work), 2 * 4 * 3, 1e-9);
  work = even(1, 1, 4);
  work.ranks_of_stage = 4;
  work.cores = 2;
  EXPECT_NEAR(pipeline_seconds(work), 2 * 4 * 3, 1e-9);
  work.crowding = 0.5;
  EXPECT_NEAR(pipeline_seconds(work), 1.5 * 4 * 3, 1e-9);
}

TEST(PipelineTime, OfManyMicroBatchesGoesOnEvenly) {
  EXPECT_NEAR(pipeline_seconds(even(2, 1, 10'000)), 10'001 * 3, 1e-6);
}

}  // namespace
}  // namespace tapestry::planning

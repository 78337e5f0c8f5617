#include "parallel_core/config/batch_rampup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "tests/message_of.h"
#include "tests/parallel_core/small_model.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace batch_rampup_test {
namespace {

AllConfig rampup(const std::string& list, int64_t rows, int64_t micro_batches) {
  return testing::small_config({"training_config.rampup_batch_size=" + list,
                                concat("dataset_config.batch_size=", rows),
                                concat("dataset_config.micro_batch_num=", micro_batches)});
}

// Megatron-LM's, word for word: RampupBatchsizeNumMicroBatchesCalculator.
int64_t megatrons_batch(int64_t consumed, int64_t start, int64_t inc, int64_t samples, int64_t g) {
  const double num_increments = static_cast<double>(g - start) / static_cast<double>(inc);
  const double rampup_samples_per_increment = static_cast<double>(samples) / num_increments;
  if (consumed > samples) {
    return g;
  }
  const auto steps =
      static_cast<int64_t>(static_cast<double>(consumed) / rampup_samples_per_increment);
  return std::min(start + steps * inc, g);
}

TEST(BatchSchedule, IsTheReferences) {
  for (const auto& [start, inc, samples] :
       std::vector<std::array<int64_t, 3>>{{4, 4, 100}, {4, 12, 7}, {8, 4, 333}, {24, 8, 5}}) {
    const AllConfig config = rampup(concat("[", start, ", ", inc, ", ", samples, "]"), 2, 16);
    const BatchSchedule schedule(config, 2);
    EXPECT_EQ(schedule.full(), 64);
    EXPECT_TRUE(schedule.ramps());
    int64_t consumed = 0;
    for (int64_t step = 0; step < 60; ++step) {
      const int64_t expected = megatrons_batch(consumed, start, inc, samples, 64);
      EXPECT_EQ(schedule.batch_at(consumed), expected);
      EXPECT_EQ(schedule.micro_batches_at(consumed), expected / 4);
      EXPECT_EQ(schedule.consumed_after(step), consumed) << step;
      EXPECT_EQ(schedule.consumed_after(3, consumed), schedule.consumed_after(step + 3));
      EXPECT_EQ(schedule.steps_within(consumed), step);
      EXPECT_EQ(schedule.steps_within(consumed + expected - 1), step);
      EXPECT_EQ(schedule.steps_until(consumed), step);
      EXPECT_EQ(schedule.steps_until(consumed + 1), step + 1);
      consumed += expected;
    }
  }
}

TEST(BatchSchedule, WithoutARampUpAllStepsHaveTheGlobalBatch) {
  for (const char* list : {"null", "[64, 8, 100]", "[8, 8, 0]"}) {
    const BatchSchedule schedule(rampup(list, 2, 16), 2);
    EXPECT_FALSE(schedule.ramps());
    EXPECT_EQ(schedule.batch_at(0), 64);
    EXPECT_EQ(schedule.consumed_after(10), 640);
    EXPECT_EQ(schedule.steps_within(639), 9);
  }
}

TEST(BatchSchedule, StepsOfSamplesAreCounted) {
  AllConfig config = rampup("[4, 4, 24]", 4, 4);  // levels 4, 8, 12, then 16
  config.training_config.training_iters = 0;
  config.dataset_config.train_samples = 60;
  // 4 4 | 8 | 12: 4 + 4 + 8 = 16, + 12 = 28, + 16 = 44, + 16 = 60.
  EXPECT_EQ(total_training_iters(config), 6);
  config.dataset_config.train_samples = 59;
  EXPECT_EQ(total_training_iters(config), 5);
}

TEST(BatchSchedule, LongRunsTakeNoLongerThanTheirLevels) {
  const AllConfig config = rampup("[64, 64, 1000000000000]", 64, 16);
  const BatchSchedule schedule(config, 1);
  const int64_t steps = schedule.steps_within(1000000000000);
  EXPECT_GT(steps, 1000000000);
  EXPECT_LE(schedule.consumed_after(steps), 1000000000000);
  EXPECT_GT(schedule.consumed_after(steps + 1), 1000000000000);
}

TEST(BatchSchedule, BadListsAreRefused) {
  const auto complaint = [](const std::string& list) {
    return message_of<ConfigError>([&] { rampup(list, 2, 4); });
  };
  EXPECT_THAT(complaint("[1, 2]"), Says("expected [start, increment, samples], got [1, 2]"));
  EXPECT_THAT(complaint("[0, 2, 5]"), Says("first steps must be above 0"));
  EXPECT_THAT(complaint("[2, 0, 5]"), Says("increment must be above 0"));
  EXPECT_THAT(complaint("[2, 2, -1]"), Says("samples must not be negative"));
  const auto refused = [](const std::string& list, int64_t ranks, const char* said) {
    EXPECT_ERROR(check_rampup(rampup(list, 2, 4), ranks), ValueError, said);
  };
  refused("[10, 2, 5]", 1, "begins with 10 sequences, above the global batch of 8");
  refused("[2, 4, 5]", 1, "from 2 sequences steps of 4 do not lead to the global batch of 8");
  refused("[2, 2, 5]", 2,
          "2 sequences are no multiple of ... make start and increment multiples "
          "of 4");
  refused("[4, 2, 5]", 2, "6 sequences are no multiple");
  EXPECT_NO_THROW(check_rampup(rampup("[4, 4, 5]", 2, 4), 2));
}

}  // namespace
}  // namespace batch_rampup_test
}  // namespace tapestry

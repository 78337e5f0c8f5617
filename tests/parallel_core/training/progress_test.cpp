#include "parallel_core/training/watch/progress.h"

#include <gtest/gtest.h>

namespace tapestry {
namespace {

StepResult result_with(double loss) {
  StepResult result;
  result.loss = loss;
  result.tokens = 500;
  return result;
}

TEST(Progress, BarRateAndRemainingTime) {
  Progress progress(60);
  progress.update({.step = 20, .step_time_ms = 2000}, result_with(3.14159));
  EXPECT_EQ(progress.line(80),
            "[##########.....................] 20/60  loss 3.1416  250 tokens/s  1:20 left");
  progress.update({.step = 60, .step_time_ms = 1000}, result_with(2));
  // A tenth of the new time: 0.9 * 2000 + 0.1 * 1000 ms.
  EXPECT_EQ(progress.line(200),
            "[" + std::string(40, '#') + "] 60/60  loss 2.0000  263 tokens/s  0:00 left");
}

TEST(Progress, FitsAnyWidth) {
  Progress progress(60);
  progress.update({.step = 20, .step_time_ms = 2000}, result_with(3.14159));
  for (int columns = 0; columns < 200; ++columns) {  // the last one is free, and two for "^C"
    EXPECT_LE(progress.line(columns).size(), static_cast<size_t>(std::max(columns - 3, 0)));
  }
  EXPECT_EQ(progress.line(60), "[###........] 20/60  loss 3.1416  250 tokens/s  1:20 left");
  EXPECT_EQ(progress.line(54), "[#....] 20/60  loss 3.1416  250 tokens/s  1:20 left");
  EXPECT_EQ(progress.line(46), "20/60  loss 3.1416  250 tokens/s  1:20 left");
  EXPECT_EQ(progress.line(35), "20/60  loss 3.1416  1:20 left");
  EXPECT_EQ(progress.line(20), "20/60  1:20 left");
  EXPECT_EQ(progress.line(10), "20/60");
  EXPECT_EQ(progress.line(6), "20/");
}

TEST(Progress, WithoutATotal) {
  Progress progress(0);
  progress.update({.step = 7, .step_time_ms = 100}, result_with(2.5));
  EXPECT_EQ(progress.line(80), "step 7  loss 2.5000  5000 tokens/s");
  EXPECT_FALSE(progress.take_pace().seconds_left);
}

TEST(Progress, PaceIsThatOfTheStepsSinceTheLast) {
  Progress progress(10);
  progress.update({.step = 1, .step_time_ms = 5000}, result_with(9));
  progress.take_pace();
  progress.update({.step = 2, .step_time_ms = 300}, result_with(4));
  progress.update({.step = 3, .step_time_ms = 100}, result_with(3));
  EXPECT_EQ(progress.steps_since_pace(), 2);
  const Pace pace = progress.take_pace();
  EXPECT_DOUBLE_EQ(pace.tokens_per_second, 2500);
  EXPECT_DOUBLE_EQ(pace.mean_loss, 3.5);
  EXPECT_DOUBLE_EQ(pace.seconds_left.value(), 7 * 0.2);
  EXPECT_EQ(progress.steps_since_pace(), 0);
}

TEST(FormatPace, StepAndRun) {
  EXPECT_EQ(format_pace(0.464, 500), "464 ms a step, 3:52 for 500 steps");
  EXPECT_EQ(format_pace(0.001234, 0), "1.23 ms a step");
  EXPECT_EQ(format_pace(0.9996, 0), "1000 ms a step");
  EXPECT_EQ(format_pace(1.657, 0), "1657 ms a step");
  EXPECT_EQ(format_pace(12.34, 2000), "12.3 s a step, 6:51:20 for 2,000 steps");
  EXPECT_EQ(format_pace(1234.5, 1), "1234 s a step, 20:35 for 1 steps");
}

TEST(FormatNumber, Thousands) {
  EXPECT_EQ(with_thousands(0), "0");
  EXPECT_EQ(with_thousands(999), "999");
  EXPECT_EQ(with_thousands(1000), "1,000");
  EXPECT_EQ(with_thousands(-1234567), "-1,234,567");
}

TEST(FormatDuration, HoursMinutesSeconds) {
  EXPECT_EQ(format_duration(0), "0:00");
  EXPECT_EQ(format_duration(-5), "0:00");
  EXPECT_EQ(format_duration(59.4), "0:59");
  EXPECT_EQ(format_duration(59.5), "1:00");
  EXPECT_EQ(format_duration(123), "2:03");
  EXPECT_EQ(format_duration(3599.6), "1:00:00");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_duration(360000), "100:00:00");
}

}  // namespace
}  // namespace tapestry

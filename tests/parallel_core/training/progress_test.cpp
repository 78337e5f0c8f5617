#include "parallel_core/training/progress.h"

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
  EXPECT_EQ(progress.line(),
            "[##########....................] 20/60  loss 3.1416  250 tokens/s  ETA 1:20");
  progress.update({.step = 60, .step_time_ms = 1000}, result_with(2));
  // A tenth of the new time: 0.9 * 2000 + 0.1 * 1000 ms.
  EXPECT_EQ(progress.line(),
            "[##############################] 60/60  loss 2.0000  263 tokens/s  ETA 0:00");
}

TEST(Progress, WithoutATotal) {
  Progress progress(0);
  progress.update({.step = 7, .step_time_ms = 100}, result_with(2.5));
  EXPECT_EQ(progress.line(), "step 7  loss 2.5000  5000 tokens/s");
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

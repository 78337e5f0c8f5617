#include "text/util/numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tapestry {
namespace {

TEST(Numbers, SignificantDigits) {
  EXPECT_EQ(number_text(3.14159265), "3.1416");
  EXPECT_EQ(number_text(-0.0), "0");
  EXPECT_EQ(number_text(2), "2");
  EXPECT_EQ(number_text(1.25e-7), "1.25e-07");
  EXPECT_EQ(number_text(12345.678, 3), "1.23e+04");
  EXPECT_EQ(number_text(std::nan("")), "NaN");
  EXPECT_EQ(number_text(-std::numeric_limits<double>::infinity()), "-inf");
}

TEST(Numbers, Amounts) {
  EXPECT_EQ(amount_text(0), "0");
  EXPECT_EQ(amount_text(12), "12");
  EXPECT_EQ(amount_text(1200), "1,200");
  EXPECT_EQ(amount_text(9999), "9,999");
  EXPECT_EQ(amount_text(1007), "1,007");
  EXPECT_EQ(amount_text(1963.7), "1,964");
  EXPECT_EQ(amount_text(12345), "12.3 k");
  EXPECT_EQ(amount_text(999'999), "1 M");
  EXPECT_EQ(amount_text(1.25e9), "1.25 B");
  EXPECT_EQ(amount_text(3e12), "3 T");
  EXPECT_EQ(amount_text(0.125), "0.125");
}

TEST(Numbers, Bytes) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(512), "512 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(2.31e9), "2.2 GiB");
  EXPECT_EQ(bytes_text(200.0 * (1 << 20)), "200 MiB");
}

TEST(Numbers, Durations) {
  EXPECT_EQ(duration_text(4.21), "4.21 s");
  EXPECT_EQ(duration_text(185), "3:05 min");
  EXPECT_EQ(duration_text(3723), "1:02:03 h");
  EXPECT_EQ(duration_text(2 * 86400 + 3 * 3600 + 59), "2 d 3 h");
  EXPECT_EQ(duration_text(0), "0 s");
}

TEST(Numbers, DurationsOfSteps) {
  EXPECT_EQ(format_duration(185.4), "3:05");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_duration(-1), "0:00");
  EXPECT_EQ(format_pace(0.464, 500), "464 ms a step, 3:52 for 500 steps");
  EXPECT_EQ(format_pace(12.5, 0), "12.5 s a step");
  EXPECT_EQ(with_thousands(-1234567), "-1,234,567");
}

TEST(Numbers, Ranges) {
  EXPECT_EQ(ranges_text({}, 3), "");
  EXPECT_EQ(ranges_text({5}, 3), "5");
  EXPECT_EQ(ranges_text({3, 7, 8, 9, 12}, 3), "3, 7-9, 12");
  EXPECT_EQ(ranges_text({3, 7, 8, 9, 12}, 2), "3, 7-9 and 1 more");
  EXPECT_EQ(ranges_text({1, 3, 4}, 1), "1 and 2 more");
}

}  // namespace
}  // namespace tapestry

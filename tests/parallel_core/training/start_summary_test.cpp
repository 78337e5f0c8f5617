#include "parallel_core/training/start_summary.h"

#include <gtest/gtest.h>

#include <sstream>

namespace tapestry {
namespace {

TEST(StartSummary, RowsAreWrappedBetweenWords) {
  EXPECT_EQ(summary_row("data", "one two", 80), "data       one two");
  EXPECT_EQ(summary_row("", "one two three", 18), "           one two\n           three");
  EXPECT_EQ(summary_row("a_long_label", "x", 10), "a_long_label x");
  std::istringstream lines(
      summary_row("data", "a few words of several lengths, and somewhat more of them", 30));
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 30U);
  }
  // A word that does not fit stands alone.
  EXPECT_EQ(summary_row("data", "x " + std::string(40, 'y'), 20),
            "data       x\n           " + std::string(40, 'y'));
}

TEST(StartSummary, Thousands) {
  EXPECT_EQ(with_thousands(0), "0");
  EXPECT_EQ(with_thousands(999), "999");
  EXPECT_EQ(with_thousands(1000), "1,000");
  EXPECT_EQ(with_thousands(-1234567), "-1,234,567");
}

}  // namespace
}  // namespace tapestry

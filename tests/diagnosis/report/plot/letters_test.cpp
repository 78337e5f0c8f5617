#include "diagnosis/report/plot/letters.h"

#include <gtest/gtest.h>

namespace tapestry::plot {
namespace {

TEST(Letters, NothingSteersATerminal) {
  EXPECT_EQ(printable("run_1 ü 中"), "run_1 ü 中");
  EXPECT_EQ(printable("a\x1b[31mb\nc\x7f"), "a?[31mb?c?");
  EXPECT_EQ(printable("\xc2\x9b"), "?");                  // CSI as one letter
  EXPECT_EQ(printable("a\xff\x80"), "a??");               // no UTF-8
  EXPECT_EQ(printable("\xe4\xb8"), "??");                 // cut short
  EXPECT_EQ(printable("\xc0\xaf\xed\xa0\x80"), "?????");  // '/' in two bytes, a surrogate
  EXPECT_EQ(printable("\xe2\x80\xae"), "?");              // writes from right to left
}

TEST(Letters, ColumnsAreThoseOfATerminal) {
  EXPECT_EQ(columns_of(""), 0);
  EXPECT_EQ(columns_of("abc"), 3);
  EXPECT_EQ(columns_of("ü⣿┤"), 3);
  EXPECT_EQ(columns_of("中文"), 4);
  EXPECT_EQ(columns_of("e\xcc\x81"), 1);  // a letter and its accent
}

TEST(Letters, CutToColumns) {
  EXPECT_EQ(cut("abcdef", 6), "abcdef");
  EXPECT_EQ(cut("abcdef", 4), "abcd");
  EXPECT_EQ(cut("abcdef", 0), "");
  EXPECT_EQ(cut("abcdefghij", 8), "ab...hij");
  EXPECT_EQ(cut("中文中文中", 8), "中...中");
  EXPECT_EQ(cut("abcdefghij", 4), "abcd");
}

}  // namespace
}  // namespace tapestry::plot

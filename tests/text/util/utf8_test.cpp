#include "text/util/utf8.h"

#include <gtest/gtest.h>

#include "autograd/tensor/error.h"

namespace tapestry::data {
namespace {

TEST(Utf8, ValidTextIsKept) {
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\n" + std::string(1, '\0');
  EXPECT_TRUE(is_valid_utf8(text));
  EXPECT_EQ(replace_invalid_utf8(text), text);
  EXPECT_TRUE(is_valid_utf8(""));
}

TEST(Utf8, EachBadPrefixBecomesOneReplacement) {
  const struct {
    const char* bytes;
    int replacements;
  } cases[] = {
      {"\x80", 1},              // continuation without lead
      {"\xC0\x80", 2},          // overlong
      {"\xC1\xBF", 2},          // overlong
      {"\xE0\x80\x80", 3},      // overlong
      {"\xED\xA0\x80", 3},      // surrogate
      {"\xF4\x90\x80\x80", 4},  // above U+10FFFF
      {"\xF5\x80", 2},          // no such lead
      {"\xC3", 1},              // cut
      {"\xE2\x82", 1},          // cut
      {"\xF0\x9F\x98", 1},      // cut
      {"\xFF\xFE", 2},
  };
  for (const auto& c : cases) {
    EXPECT_FALSE(is_valid_utf8(c.bytes));
    std::string expected;
    for (int i = 0; i < c.replacements; ++i) {
      expected += "\xEF\xBF\xBD";
    }
    const std::string replaced = replace_invalid_utf8(concat("<", c.bytes, ">"));
    EXPECT_EQ(replaced, concat("<", expected, ">"));
    EXPECT_TRUE(is_valid_utf8(replaced));
  }
}

}  // namespace
}  // namespace tapestry::data

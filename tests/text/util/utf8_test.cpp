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

TEST(Utf8, CharactersOfEveryLengthAreReadForwardsAndBackwards) {
  const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80";
  const std::vector<uint32_t> points = {'a', 0xE9, 0x20AC, 0x1F600};
  EXPECT_EQ(code_points(text), points);
  EXPECT_EQ(count_characters(text), points.size());
  std::string written;
  std::vector<size_t> begins;
  for (size_t at = 0; at < text.size(); at += character_length(text, at)) {
    ASSERT_LT(begins.size(), points.size());
    EXPECT_EQ(code_point_at(text, at), points[begins.size()]);
    EXPECT_EQ(first_sequence(std::string_view(text).substr(at)).code_point, points[begins.size()]);
    append_utf8(written, points[begins.size()]);
    begins.push_back(at);
  }
  EXPECT_EQ(written, text);
  size_t end = text.size();
  for (size_t i = begins.size(); i-- > 0;) {
    EXPECT_EQ(character_before(text, end), begins[i]);
    end = begins[i];
  }
  for (const uint32_t point : {0xD800U, 0xDFFFU, 0x110000U}) {
    EXPECT_THROW(utf8(point), ValueError);
  }
}

TEST(Utf8, TheFirstSequenceOfIllFormedTextIsItsMaximalPrefix) {
  EXPECT_EQ(first_sequence("\xE2\x82").length, 2U);
  EXPECT_TRUE(first_sequence("\xE2\x82").cut);
  EXPECT_EQ(first_sequence("\xE2\x82x").length, 2U);
  EXPECT_FALSE(first_sequence("\xE2\x82x").cut);
  EXPECT_EQ(first_sequence("\xED\xA0\x80").length, 1U);
  EXPECT_EQ(first_sequence("\xFF").code_point, 0xFFFDU);
}

}  // namespace
}  // namespace tapestry::data

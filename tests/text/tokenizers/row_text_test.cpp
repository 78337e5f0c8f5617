#include "text/tokenizers/row_text.h"

#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::data {
namespace row_text_test {
namespace {

std::string text_of(const std::string& bytes, int64_t most, int64_t further = -1) {
  std::vector<int64_t> ids;
  for (const char c : bytes) {
    ids.push_back(static_cast<unsigned char>(c));
  }
  if (further >= 0) {
    ids.push_back(further);
  }
  return row_text(ByteTokenizer(), ids, most);
}

TEST(RowText, IsShortenedByCharacters) {
  EXPECT_EQ(text_of("", 1), "");
  EXPECT_EQ(text_of("abc", 3), "abc");
  EXPECT_EQ(text_of("abcd", 3), "abc...");
  EXPECT_EQ(text_of("\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80", 3),
            "\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80");
  EXPECT_EQ(text_of("\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80", 2), "\xC3\xA4\xE2\x82\xAC...");
  EXPECT_ERROR(text_of("a", 0), ValueError, "at most 0 characters");
}

// Rows begin and end within characters.
TEST(RowText, IsUtf8WhateverTheIds) {
  EXPECT_EQ(text_of("\xA4 a \xE2\x82", 9), "\xEF\xBF\xBD a \xEF\xBF\xBD");
  EXPECT_EQ(text_of("a", 9, ByteTokenizer::kEod), "a");
  EXPECT_EQ(text_of("a", 9, 257), "a\xEF\xBF\xBD");
  EXPECT_EQ(text_of("\xE2\x82", 9, int64_t{1} << 40), "\xEF\xBF\xBD\xEF\xBF\xBD");
}

}  // namespace
}  // namespace row_text_test
}  // namespace tapestry::data

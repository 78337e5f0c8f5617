#include "text/tokenizers/huggingface/pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "tests/says.h"
#include "tests/temp_dir.h"
#include "text/tokenizers/huggingface/aligned_text.h"

namespace tapestry::data::huggingface {
namespace pattern_test {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  const Pattern compiled = Pattern::regex(pattern);
  Pattern::Finder finder(compiled, text);
  Pattern::Match match;
  std::vector<std::string> found;
  while (finder.next(match)) {
    found.push_back(text.substr(match.begin, match.end - match.begin));
  }
  return found;
}

// Where Oniguruma and PCRE2 mean different things by the same words.
TEST(Pattern, IsReadAsOnigurumaReadsIt) {
  EXPECT_THAT(matches("\\s+",
                      "a\xE1\xA0\x8E"
                      "b c"),
              ElementsAre(" "));  // not U+180E
  EXPECT_THAT(matches("[\\s]", "\xE1\xA0\x8E\xE3\x80\x80"), ElementsAre("\xE3\x80\x80"));
  EXPECT_THAT(matches("\\S+", "a\xE1\xA0\x8E b"), ElementsAre("a\xE1\xA0\x8E", "b"));
  EXPECT_THAT(matches("\\p{L}+",
                      "a\xE1\xB2\x89"
                      "b"),
              ElementsAre("a\xE1\xB2\x89"
                          "b"));  // U+1C89
  EXPECT_THAT(matches("[^\\p{N}]+",
                      "1\xF0\x90\xB5\x80"
                      "a2"),
              ElementsAre("a"));  // U+10D40
  // Superscripts and fractions of Latin-1 are word characters outside of brackets, others are not.
  EXPECT_THAT(matches("\\w+", "a\xCC\x81_1\xC2\xB2"), ElementsAre("a\xCC\x81_1\xC2\xB2"));
  EXPECT_THAT(matches("\\w+", "x\xC2\xBD y\xE2\x85\x93"), ElementsAre("x\xC2\xBD", "y"));
  EXPECT_THAT(matches("\\W", "a\xC2\xB9\xE2\x81\xB4"), ElementsAre("\xE2\x81\xB4"));
  EXPECT_THAT(matches("[\\w]+", "1\xC2\xB2"), ElementsAre("1"));
  EXPECT_THAT(matches("[\\W]+", "1\xC2\xB2"), ElementsAre("\xC2\xB2"));
  EXPECT_THAT(matches("[b\\W]+", "ab\xC2\xB2"), ElementsAre("b\xC2\xB2"));
  EXPECT_THAT(matches("[^b\\W]+", "ab\xC2\xB2_"), ElementsAre("a", "_"));
  EXPECT_THAT(matches("[^\\W]+", "a\xC2\xB2_"), ElementsAre("a", "_"));
  EXPECT_THAT(matches("m\\b", "m\xC2\xB2 m m\xE2\x81\xB4"), ElementsAre("m", "m"));
  EXPECT_THAT(matches("m\\B", "m\xC2\xBE m"), ElementsAre("m"));
  EXPECT_THAT(matches("\\h+", "xAf09g"), ElementsAre("Af09"));
  EXPECT_THAT(matches("\\p{N}{1,3}+", "12345a"), ElementsAre("12345"));
  EXPECT_THAT(matches("(?m:a.)", "a\nab"), ElementsAre("a\n", "ab"));
  EXPECT_THAT(matches("a.", "a\nab"), ElementsAre("ab"));
  EXPECT_THAT(matches("^b", "a\nb"), ElementsAre("b"));
  EXPECT_THAT(matches("[a-z&&[^aeiou]]+", "hello"), ElementsAre("h", "ll"));
  EXPECT_THAT(matches("a{2}?b", "aab b"), ElementsAre("aab", "b"));
  EXPECT_THAT(matches("[\\101-\\103]+\\pL", "xABpL"), ElementsAre("ABpL"));
  EXPECT_THAT(matches("x{,2}y", "xxxy y"), ElementsAre("xxy", "y"));
  EXPECT_THAT(matches("[[:punct:]]+", "a$\xC2\xA3.b"), ElementsAre("$\xC2\xA3."));
  EXPECT_THAT(matches("x?", "axb"), ElementsAre("", "x", ""));
  EXPECT_THAT(matches("[a[bc]]+", "abcd"), ElementsAre("abc"));
  EXPECT_ERROR(Pattern::regex("[a"), ValueError, "[ without ]");
  EXPECT_ERROR(Pattern::regex("\\"), ValueError, "a backslash at the end");
  for (const char* called : {"(a|(?R)b)", "(a|b(?1)(?1))", "(?<n>a|\\g<n>b)", "(?<n>a|(?&n))",
                             "(?P<n>a|(?P>n))", "(a(?-1)?)"}) {
    EXPECT_ERROR(Pattern::regex(called), ValueError, "is not known here");
  }
  EXPECT_ERROR(Pattern::regex(std::string(20000, 'a')), ValueError, "20000 bytes");
}

std::string utf8(uint32_t code_point) {
  std::string text;
  append_utf8(text, code_point);
  return text;
}

// Whether the expression matches the character.
bool has(const Pattern& pattern, uint32_t code_point) {
  const std::string text = utf8(code_point);
  Pattern::Finder finder(pattern, text);
  Pattern::Match match;
  return finder.next(match) && match.begin == 0 && match.end == text.size();
}

// What Oniguruma 6.9.10 (by `tokenizers` 0.23) says of characters on either side of a border: those
// where PCRE2 10.42 says otherwise, or would by the plain translation.
TEST(Pattern, SetsHaveOnigurumasMembers) {
  const struct {
    const char* pattern;
    std::vector<uint32_t> members;
    std::vector<uint32_t> others;
  } cases[] = {
      {"\\w", {'_', 0xB2, 0xBE, 0x345, 0x897, 0x113B8, 0x16130, 0x1E4EC}, {'-', 0x2074, 0x10D8E}},
      {"[\\w]", {0x897, 0x10EFC}, {0xB2, 0xBE}},
      {"\\p{Word}", {0xB9, 0x1171E}, {0x2153}},
      {"[\\p{Word}]", {0x1171E}, {0xB9}},
      {"[[:word:]]", {0x897}, {0xB9}},
      {"\\W", {0xAB, 0x1FADF}, {0x897, 0xCF3, 0x1611E}},
      {"[\\W_]", {'_', '!'}, {0x11F00, 'a'}},
      {"\\d", {'7', 0x10D40, 0x1CCF9, 0x1E5F1}, {0xB2, 0x2460}},
      {"[^\\D]", {0x11BF0, '0'}, {'a'}},
      {"\\p{M}", {0x300, 0xECE, 0x1E4EF}, {'a'}},
      {"\\p{Mn}", {0x10EFD}, {0x1171E}},
      {"\\p{Mc}", {0x1171E, 0xCF3}, {0x897}},
      {"\\p{P}", {'!', 0x1B4E, 0x1E5FF}, {'$', 0x2FFC}},
      {"\\p{Punct}", {'!', 0x10D6E}, {'$', '+', 0xA2}},
      {"[[:punct:]]", {'!', '$', '+', 0xA2, 0x1CC00}, {'a'}},
      {"\\p{S}", {'$', 0x31EF, 0x1F8B2}, {'!'}},
      {"\\p{Cn}", {0x378, 0x1FAE0 + 0xA}, {0x1FAE8, 0x2B739}},
      {"\\p{C}", {0x7, 0x13439, 0xE000, 0x378}, {0x1FAE8}},
      {"\\p{Cf}", {0xAD, 0x1343F}, {0x13440}},
      {"\\p{LC}", {'a', 0x1C89, 0x10D70}, {0x10D4A}},
      {"[\\P{L}]", {'1'}, {0x1C89, 0x31350}},
      {"[^\\P{L}]", {0x1C89, 'a'}, {'1'}},
      {"[\\p{^N}]", {'a'}, {0x10D40, '1'}},
      {"[[:alpha:]]", {0x363, 0xF82, 0x1DD3, 0x11080}, {0x300, '1'}},
      {"[[:^alpha:]]", {0x300, '1'}, {0x345, 0x363}},
      {"\\p{Alnum}", {0xC04, 0x10D40}, {0xB2}},
      {"[[:upper:]]", {'A', 0x1F130, 0xA7CB}, {'a'}},
      {"[[:lower:]]", {'a', 0x10FC, 0xA7F2, 0x1E030}, {'A'}},
      {"[[:blank:]]", {'\t', 0x3000}, {0x180E, '\n'}},
      {"[[:graph:]]", {0x180E, 0xE000, 0x897, 0x61C}, {' ', 0x85, 0x2028, 0x378}},
      {"[[:print:]]", {0x180E, 0xE000, ' ', 0x3000}, {'\n', 0x2028, 0x378}},
      {"[[:^space:]]", {0x180E}, {0x85}},
      {"\\p{Han}", {0x4E00, 0x2EBF0, 0x323AF}, {0x3042}},
      {"\\p{Kawi}", {0x11F02}, {0x11F11}},
      {"\\p{Common}", {'1', 0x1FADF}, {'a'}},
      {"\\p{Emoji}", {0x1F600, 0x1FADF}, {'a'}},
      {"\\p{Nonspacing_Mark}", {0x301}, {0x903}},
      {"\\p{Assigned}", {0x897}, {0x378}},
      {"[\\H]", {'g'}, {'f'}},
      {"\\v", {0xB}, {'\n', 0x85}},
      {"[\\w-z]", {'-', 'a'}, {'!'}},
      {"[\\p{L}&&\\p{ASCII}]", {'a'}, {'1', 0xE9}},
      {"[^a-z&&[^aeiou]]", {'a', 'A', '1'}, {'b'}},
      {"[[:^punct:]&&\\S]", {'a'}, {'!', ' '}},
      {"[[a-c][x-z]1]", {'b', 'y', '1'}, {'d'}},
      {"[^[a-c]]", {'d'}, {'b'}},
      {"(?i)[\\p{Lu}]", {'a', 'A', 0x1C8A, 0x10D70}, {'1', 0xAA}},
      {"(?i)[[:lower:]]", {'A', 0xA7CB}, {'1'}},
      {"(?i:[k])", {'K', 0x212A}, {'j'}},
      {"(?i)(?-i)[\\p{Lu}]", {'A'}, {'a'}},
      {"\\O", {'\n', 'a'}, {}},
  };
  for (const auto& c : cases) {
    const Pattern pattern = Pattern::regex(c.pattern);
    for (const uint32_t point : c.members) {
      EXPECT_TRUE(has(pattern, point)) << c.pattern << " and U+" << std::hex << point;
    }
    for (const uint32_t point : c.others) {
      EXPECT_FALSE(has(pattern, point)) << c.pattern << " and U+" << std::hex << point;
    }
  }
  EXPECT_ERROR(Pattern::regex("\\p{Sparkling}"), ValueError, "unknown property");
  EXPECT_ERROR(Pattern::regex("[[:sparkling:]]"), ValueError, "[:sparkling:]");
}

TEST(Pattern, GraphemesAreOnesOwn) {
  const std::string smile = utf8(0x1F600);
  const std::string joined = smile + utf8(0x200D) + utf8(0x1F467) + utf8(0x1F3FD);
  EXPECT_THAT(matches("\\X", smile + smile + joined + "e" + utf8(0x301) + "\r\n"),
              ElementsAre(smile, smile, joined, "e" + utf8(0x301), "\r\n"));
}

// Far searches are cut into windows, so that the clock can be read between them.
TEST(Pattern, FindsWhatStandsFarBehind) {
  const Pattern pattern = Pattern::regex("\\p{Han}|Z");
  for (const size_t far :
       {1, 4000, 4095, 4096, 4097, 4098, 8190, 8193, 9000, 12300, 20000, 70001}) {
    const std::string text = std::string(far, 'a') + utf8(0x4E2D) + "b";
    Pattern::Finder finder(pattern, text);
    Pattern::Match match;
    ASSERT_TRUE(finder.next(match)) << far;
    EXPECT_EQ(match.begin, far);
    EXPECT_FALSE(finder.next(match)) << far;
    std::string marks;
    for (size_t i = 0; i < far; ++i) {
      marks += utf8(0x301);
    }
    marks += "Z";
    Pattern::Finder behind_marks(pattern, marks);
    ASSERT_TRUE(behind_marks.next(match)) << far;
    EXPECT_EQ(match.begin, 2 * far);
  }
}

}  // namespace
}  // namespace pattern_test
}  // namespace tapestry::data::huggingface
